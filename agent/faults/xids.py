"""XID errors: the values of `${...}` in their declarations, and the recent errors of a machine."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby

from agent.faults.model import Fault, Finding, Look, Seen
from agent.model import Figure, GpuKey, Severity
from agent.sources import gpu, xid
from agent.specs import xids
from agent.specs.xids import XidMeaning, catalogue, first_steps, meaning

UNNUMBERED = meaning(0)
"""The meaning used for all codes that are not in the catalogue."""

UNUSED = "a code that NVIDIA does not use"
"""The name in the catalogue of codes that are not used."""


def xid_rules() -> list[tuple[XidMeaning, ...]]:
    """Return the meanings of all codes in groups with the same severity and action."""
    order = list(Severity)[::-1]

    def alike(m: XidMeaning) -> tuple[int, str]:
        return order.index(m.severity), m.action

    known = sorted(catalogue().values(), key=lambda m: (*alike(m), m.code))
    return [tuple(part) for _, part in groupby(known, alike)]


def rules() -> Iterator[dict[str, str]]:
    """Yield the values for a rule per severity and action, and for one for all unknown codes."""
    for same in xid_rules():
        codes = "|".join(str(one.code) for one in same)
        yield _row(same[0].severity, same[0].action, f'=~"{codes}"')
    rest = _row(UNNUMBERED.severity, UNNUMBERED.action, '!~"${listed}"')
    yield rest | {"sign": "unlisted"}


def of_units() -> Iterator[dict[str, str]]:
    """Yield the values for the alerting rules for NVLink 5 errors, one rule per required action."""
    for action, do in first_steps("first_step_by_unit").items():
        what = first_steps("happened_by_unit")[action]
        yield {**_row(_of_action(action), action), "happened": what, "do": do}


def _row(severity: Severity, action: str, codes: str = "") -> dict[str, str]:
    lesser = "" if severity is Severity.CRITICAL else "-lesser"
    return {
        "group": f"dgx-xids{lesser}",
        "severity": severity.value,
        "action": action,
        "codes": codes,
        "hold": _hold(severity, action),
        "happened": first_steps("happened")[action],
        "do": first_steps()[action],
        "sign": "",
    }


def _hold(severity: Severity, action: str) -> str:
    later = "2m" if severity is Severity.CRITICAL else "5m"
    return "9m" if action == "reset_later" else later


def hold_of(finding: Finding) -> str:
    return _hold(finding.severity, meaning(int(finding.device)).action)


def _of_action(action: str) -> Severity:
    return Severity.CRITICAL if action == xids.RESET else Severity.INFO


def seen(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield each recent XID error with its severity. For NVLink 5 errors, the severity depends on
    the affected unit. An error without a timestamp counts as recent."""
    samples = machine.samples
    infos = samples.labelled(gpu.INFO)
    architectures = {info["uuid"]: info["architecture"] for info in infos}
    units: dict[tuple[str, str], list[Severity]] = {}
    for (_, uuid, code, _, action), count in samples.all(xid.NVLINK_FAULTS).items():
        if count:
            units.setdefault((uuid, code), []).append(_of_action(action))
    order = list(Severity)
    for (index, uuid, code), count in sorted(samples.all(xid.XID_ERRORS).items()):
        at = samples.value(xid.AT, index, uuid, code) if count else None
        if not count or (at is not None and samples.now - at > fault.bound):
            continue
        figures = [Figure("times", count, None, "count")]
        if at is not None:
            figures.append(Figure("ago", max(0.0, samples.now - at), None, "seconds"))
        own = units.get((uuid, code), [meaning(int(code)).severity])
        what = xids.name(int(code), architectures.get(uuid, ""))
        worst = max(own, key=order.index)
        labels = (("xid", code), ("action", meaning(int(code)).action))
        yield Seen(GpuKey(int(index), uuid), code, tuple(figures), (what,), worst, labels)


def _text(table: str, finding: Finding) -> str:
    """Return the text about the XID error of a finding from a table of the catalogue."""
    code = int(finding.device)
    if code in xids.NVLINK5 and finding.severity is not meaning(code).severity:
        critical = finding.severity is Severity.CRITICAL
        return first_steps(f"{table}_by_unit")[xids.RESET if critical else xids.IGNORE]
    return first_steps(table)[meaning(code).action]


happened, first_step = (partial(_text, table) for table in ("happened", "first_step"))
"""Functions that return what an XID error of a finding means, and the first step."""


def table() -> Iterator[str]:
    """Yield the lines of a Markdown table of the catalogue for the runbook: one line per code, in
    ascending order, and a last line for codes that NVIDIA does not use."""
    yield "| XID | name | severity | first step | GPUs |"
    yield "|---|---|---|---|---|"
    for m in sorted(catalogue().values(), key=lambda m: m.code):
        older = f"; up to Volta: {m.older}" if m.older else ""
        first = first_steps()[m.action]
        if m.name != UNUSED:
            yield f"| {m.code} | {m.name}{older} | {m.severity.value} | {first} | {m.generations} |"
    severity, first = UNNUMBERED.severity.value, first_steps()[UNNUMBERED.action]
    yield f"| others | {UNUSED}, or that is newer than this table | {severity} | {first} | all |"
