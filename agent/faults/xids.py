"""XID errors: a rule for each severity and action of the catalogue; a finding for each code."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from agent.faults.lost import LOST
from agent.faults.model import INFO, SAME_GPU, SAME_NODE, Fault, HiddenBy, Look, Seen, gpu_fault
from agent.faults.promql import NODE, pick, seconds, spoken
from agent.faults.records import EventRecords
from agent.faults.thresholds import RuleParameters
from agent.model import Figure, Finding, GpuKey, Severity
from agent.sources import gpu, xid
from agent.specs.xids import (
    NVLINK5,
    XidAction,
    XidMeaning,
    catalogue,
    first_steps,
    meaning,
    name,
)

NAME = "DgxGpuXid"
HAPPENED = first_steps("happened")
UNNUMBERED = meaning(0)
"""Placeholder for every code that the catalogue does not have."""

UNUSED = "a code that NVIDIA does not use"
"""Name that the catalogue gives to unused codes."""

LOST_DATA = "=~48|95|140"
"""XIDs that report lost data."""

OF_MEMORY = 'xid=~"13|43|45|48|63|64|92|94|95|140|154|171|172"'
OF_LINKS = 'xid=~"45|74|14[4-9]|150|154|155"'
CRITICAL, LESSER = 'severity="critical"', 'severity!="critical"'
FABRIC = "DgxFabricFault"

HIDDEN_BY = (
    HiddenBy("DgxGpuRowRemapFailure", SAME_GPU, only=(OF_MEMORY,)),
    HiddenBy("DgxGpuEccUncorrected", SAME_GPU, only=(OF_MEMORY, LESSER)),
    HiddenBy(NAME, SAME_GPU, (CRITICAL,), (LESSER,)),
    HiddenBy("DgxGpuRecoveryNeeded", SAME_GPU, only=(LESSER,)),
    HiddenBy("DgxGpuPagesPending", SAME_GPU, only=('xid="63"',)),
    HiddenBy("DgxGpuEccRising", SAME_GPU, ('sign="corrected"',), ('xid="92"',)),
    HiddenBy(NAME, SAME_GPU, ('sign="nvlink5"',), ('action="by_unit"',)),
    HiddenBy("DgxNvlinkDown", SAME_GPU, only=(OF_LINKS, LESSER)),
    HiddenBy(FABRIC, SAME_NODE, ('sign="manager"',), (OF_LINKS, LESSER)),
    HiddenBy(FABRIC, SAME_NODE, ('sign="switch"',), (OF_LINKS,)),
)
"""An XID that reports lost data comes before the counters, which are read once a minute: the rule
of DgxGpuEccUncorrected leaves it to that XID."""

BY_UNIT = {
    XidAction.RESET: "Drain the node and reset the GPU; if it comes back, open a support case.",
    XidAction.IGNORE: "No immediate action; if XID 154 follows, do what it requests.",
}
"""Codes of XID 144 to 150, by the action that follows from their unit."""


def xid_rules() -> list[tuple[XidMeaning, ...]]:
    """The codes of the same severity and first step, together."""
    order = list(Severity)[::-1]

    def alike(m: XidMeaning) -> tuple[int, str]:
        return order.index(m.severity), m.action.value

    known = sorted(catalogue().values(), key=lambda m: (*alike(m), m.code))
    return [tuple(part) for _, part in groupby(known, alike)]


def xid_records(parameters: RuleParameters) -> EventRecords:
    """Errors of each code within the window; every rule uses them."""
    return EventRecords.of(parameters, xid.XID_ERRORS)


def nvlink5_records(parameters: RuleParameters) -> EventRecords:
    """Errors of each unit of NVLink 5 within the window."""
    return EventRecords.of(parameters, xid.NVLINK_FAULTS)


def xid_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    """Return the fault that a look finds, then a rule for each severity and action, for codes that
    the catalogue does not have, and for NVLink 5."""
    window = seconds(parameters.thresholds.event_window)
    found = Fault(
        alert=NAME,
        kind="xid",
        severity=Severity.CRITICAL,
        look=lambda machine: _seen(machine, window),
        fires=lambda found: _hold(found.severity, meaning(int(found.device)).action),
        sentence=(
            "XID {device}, {happened} ({0}), seen {times:once|times}",
            ", {times:~|last }{ago:duration} ago",
        ),
        terms={"happened": lambda found: HAPPENED[meaning(int(found.device)).action]},
        do=_first_step,
    )
    return (
        found,
        *(_alert(parameters, m, f"=~{pattern(one.code for one in m)}") for m in xid_rules()),
        _alert(parameters, (UNNUMBERED,), f"!~{pattern(catalogue())}", sign="unlisted"),
        *(_of_nvlink5(parameters, action) for action in BY_UNIT),
    )


def pattern(codes: Iterable[int]) -> str:
    """Return a regular expression of codes: each ten as a class of digits."""
    tens: dict[int, list[int]] = {}
    for code in sorted(codes):
        tens.setdefault(code // 10, []).append(code % 10)
    parts = (f"{ten or ''}{_digits(found)}" for ten, found in tens.items())
    return "|".join(parts)


def _digits(found: Sequence[int]) -> str:
    if len(found) == 1:
        return str(found[0])
    whole = len(found) > 3 and found[-1] - found[0] == len(found) - 1
    return f"[{found[0]}-{found[-1]}]" if whole else f"[{''.join(map(str, found))}]"


def _alert(
    parameters: RuleParameters, meanings: Sequence[XidMeaning], codes: str, **labels: str
) -> Fault:
    """The rule of codes with the same severity and first step; the runbook's table has their
    names."""
    action, severity = meanings[0].action, meanings[0].severity
    return gpu_fault(
        alert=NAME,
        severity=severity,
        when=_there(pick(xid_records(parameters).events, xid=codes)),
        hold=_hold(severity, action),
        labels={"action": action.value, **labels},
        summary=f"XID {{{{ $labels.xid }}}}, {HAPPENED[action]}",
        sentence=_counted(f"XID {{0}}, {HAPPENED[action]}", parameters),
        figure="times",
        names=("xid",),
        do=first_steps()[action],
        hidden_by=HIDDEN_BY,
    )


def _there(events: str) -> str:
    """A lost GPU is reported as missing; a GPU whose driver hangs is still here."""
    return f"{events} > 0 unless on ({NODE}, uuid) {LOST}"


def _counted(what: str, parameters: RuleParameters) -> tuple[str]:
    return (f"{what}, {{times:once|times}} in {spoken(parameters.thresholds.event_window)}",)


def _of_nvlink5(parameters: RuleParameters, action: XidAction) -> Fault:
    events = pick(nvlink5_records(parameters).events, action=action.value)
    return gpu_fault(
        alert=NAME,
        severity=_of_action(action),
        when=_there(events),
        hold=_hold(_of_action(action), action),
        labels={"sign": "nvlink5"},
        summary=f"XID {{{{ $labels.xid }}}}, {HAPPENED[XidAction.BY_UNIT]}",
        sentence=_counted("XID {0}, NVLink error (unit {1})", parameters),
        figure="times",
        names=("xid", "unit"),
        do=BY_UNIT[action],
        hidden_by=HIDDEN_BY,
    )


def _hold(severity: Severity, action: XidAction) -> str:
    later = "2m" if severity is Severity.CRITICAL else "5m"
    return "9m" if action is XidAction.RESET_LATER else later


def _of_action(action: XidAction) -> Severity:
    return Severity.CRITICAL if action is XidAction.RESET else INFO


def _seen(machine: Look, window: float) -> Iterator[Seen]:
    """Recent errors, each with the severity of its alert; for NVLink 5 that of its unit. The time
    of an error may not be known; then it counts."""
    samples = machine.samples
    architectures = {
        labels["uuid"]: labels["architecture"] for labels in samples.labelled(gpu.INFO)
    }
    units: dict[tuple[str, str], list[Severity]] = {}
    for (_, uuid, code, _, action), count in samples.all(xid.NVLINK_FAULTS).items():
        if count:
            units.setdefault((uuid, code), []).append(_of_action(XidAction(action)))
    order = list(Severity)
    for (index, uuid, code), count in sorted(samples.all(xid.XID_ERRORS).items()):
        at = samples.value(xid.AT, index, uuid, code)
        if not count or (at is not None and samples.now - at > window):
            continue
        figures = [Figure("times", count, None, "count")]
        if at is not None:
            figures.append(Figure("ago", max(0.0, samples.now - at), None, "seconds"))
        own = units.get((uuid, code), [meaning(int(code)).severity])
        what = name(int(code), architectures.get(uuid, ""))
        worst = max(own, key=order.index)
        labels = (("xid", code), ("action", meaning(int(code)).action.value))
        yield Seen(GpuKey(int(index), uuid), code, tuple(figures), (what,), worst, labels)


def _first_step(finding: Finding) -> str:
    code = int(finding.device)
    if code in NVLINK5 and finding.severity is not meaning(code).severity:
        action = XidAction.RESET if finding.severity is Severity.CRITICAL else XidAction.IGNORE
        return BY_UNIT[action]
    return first_steps()[meaning(code).action]


def table() -> Iterator[str]:
    """Yield the catalogue for the runbook: a line for each code, in order; codes that NVIDIA does
    not use are one line at the end."""
    yield "| XID | name | severity | first step | GPUs |"
    yield "|---|---|---|---|---|"
    for m in sorted(catalogue().values(), key=lambda m: m.code):
        older = f"; up to Volta: {m.older}" if m.older else ""
        first = first_steps()[m.action]
        if m.name != UNUSED:
            yield f"| {m.code} | {m.name}{older} | {m.severity.value} | {first} | {m.generations} |"
    severity, first = UNNUMBERED.severity.value, first_steps()[UNNUMBERED.action]
    yield f"| others | {UNUSED}, or that is newer than this table | {severity} | {first} | all |"
