"""The words for what the agent found, for the page, the terminal and JSON alike.

Verdicts, facts and findings are values; each kind has its sentence here. A sentence is a row of
parts; a part is left out where one of its figures or names is not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from agent.diagnosis.advice import SUMMARIES, advice
from agent.diagnosis.facts import FactKind
from agent.faults.findings import action, by_kind
from agent.faults.values import seconds
from agent.model import Fact, Figure, Finding, Pair, Severity, Verdict

Document = dict[str, Any]

SCALES = {"ratio": 100.0, "bytes_per_second": 1e-9, "per_second": 1e-3, "hertz": 1e-6}
"""From base units to those of sentences: per cent, GB/s, thousands a second, MHz."""

PATHS = {
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "hbm": "HBM",
    "disk": "disk",
    "network": "network port",
    "infiniband": "InfiniBand port",
}
"""A data path in words."""

GOOD, NOTICE, COSTLY, WRONG, UNKNOWN = "good", "notice", "costly", "wrong", "unknown"
LEVELS = {Severity.CRITICAL: WRONG, Severity.WARNING: COSTLY, Severity.INFO: NOTICE, None: GOOD}
"""Levels of severity, the same in every view; None for a healthy state."""

WORST_FIRST = (WRONG, COSTLY, NOTICE, UNKNOWN, GOOD)
UNANSWERED = "not known: the driver does not answer"

Parts = Sequence[str]
"""`{name}` is a figure and `{name_limit}` its limit, `{0}` the first name, `{names}` all of them,
`{gpu}` and `{device}` what it is about; `{n:link|links}` counts, `{n:~link|links}` only agrees;
`{speed:rate}` is in GB/s, `{speed:bits}` in Gb/s, as networks are sold."""

OF_TRAFFIC = "{traffic:rate} of {traffic_limit:rate} GB/s"
OF_TIME = "{time:.0f} % of the time"
AT_CLOCK = ", SM clock at {sm_clock:.0f} % of its maximum"

SOON = 10.0
"""Seconds from which it is shown for how long: a sentence that changes each second is not read."""

FACTS: Mapping[FactKind, Parts] = {
    FactKind.NO_PROCESS: ("no compute process is on it",),
    FactKind.AT_REST: ("no activity; the processes are not known",),
    FactKind.HOLDING: (
        "{processes:process|processes} on it, ",
        "no activity for {quiet_for:.0f} s",
    ),
    FactKind.THERMAL_SLOWDOWN: (f"thermal slowdown for {OF_TIME}", AT_CLOCK),
    FactKind.POWER_BRAKE: (f"power brake for {OF_TIME}", AT_CLOCK),
    FactKind.POWER_CAP: (f"power cap for {OF_TIME}", AT_CLOCK),
    FactKind.VOLTAGE_LIMIT: (f"reliability voltage limit for {OF_TIME}", AT_CLOCK),
    FactKind.COPIES_TO_GPU: (f"copies to the GPU fill PCIe: {OF_TRAFFIC}",),
    FactKind.COPIES_FROM_GPU: (f"copies from the GPU fill PCIe: {OF_TRAFFIC}",),
    FactKind.SM_ACTIVITY: ("SM activity {sm:.0f} %",),
    FactKind.POWER_DRAW: ("power at {power:.0f} % of its limit",),
    FactKind.NVLINK_TRAFFIC: (f"NVLink carries {OF_TRAFFIC} ({{share:.0f}} %, {{0}})",),
    FactKind.INFINIBAND_TRAFFIC: (
        "InfiniBand {1} carries {traffic:bits} of {traffic_limit:bits} Gb/s ({share:.0f} %, {0})",
    ),
    FactKind.PEER_PCIE_TRAFFIC: (
        f"PCIe carries {OF_TRAFFIC} between GPUs ({{share:.0f}} %, {{0}})",
    ),
    FactKind.BUSIER_PEER: (
        "waiting for GPU {gpu}, which works harder",
        " (SM activity {peer_sm:.0f} %; this one {sm:.0f} %)",
        " ({peer_power:.0f} % of its power limit; this one {power:.0f} %)",
    ),
    FactKind.SLOW_PEER: (
        "waiting for GPU {gpu} of the same job, active {peer_activity:.0f} % of the time",
    ),
    FactKind.ACTIVE: ("active {activity:.0f} % of the time",),
    FactKind.DISK_READS: (
        "{0} reads {read:rate}",
        " of {read_limit:rate}",
        " GB/s",
        ", busy {busy:.0f} % of the time",
    ),
    FactKind.DISK_WRITES: ("{0} is busy {busy:.0f} % of the time with writes",),
    FactKind.NETWORK_MOUNTED: ("local disks are quiet, {names} is mounted",),
    FactKind.ONE_THREAD: (
        "the launching thread uses {cores:.2f} cores while the GPU is active {activity:.0f} % of "
        "the time",
        " and launches about {launches:.0f} thousand kernels a second",
    ),
    FactKind.WITHOUT_PROCESS: (
        "active {activity:.0f} % of the time without a listed compute process",
    ),
    FactKind.HUNG_SPINNING: ("kernels have only waited for other GPUs of the job",),
    FactKind.HUNG_AT_REST: ("no activity, and every GPU of the job waits",),
    FactKind.UPLINK_FULL: (
        f"the uplink of PCIe switch {{0}}, which several GPUs share, carries {OF_TRAFFIC}",
    ),
    FactKind.CLOCKS_SET: (
        "application or locked clocks keep the SM clock at {sm_clock:.0f} % of its highest",
    ),
    FactKind.THREADS_QUEUED: (f"the threads wait for a core {OF_TIME}",),
    FactKind.WORKERS_RUNNING: (
        "the launching thread waits while {workers:other thread or process|other threads and "
        "processes} of the job use {cores:.1f} cores",
    ),
    FactKind.BLOCKED: (f"blocked on I/O {OF_TIME}",),
    FactKind.JOB_READS: ("the job reads {rate:rate} GB/s from disk",),
    FactKind.JOB_WRITES: ("the job writes {rate:rate} GB/s to disk",),
    FactKind.JOB_RECEIVES: ("{rate:bits} Gb/s arrive over the network meanwhile",),
    FactKind.TWO_POWER_LEVELS: (
        f"power falls from {{lower_limit:.0f}} to {{lower:.0f}} W for {OF_TIME}",
    ),
    FactKind.QUIET: (
        "no activity; it counts as held once processes rest for {held_after:.0f} s too",
    ),
    FactKind.UNEXPLAINED: ("active {activity:.0f} % of the time; cause unknown",),
    FactKind.NO_REQUESTS: (
        "works in bursts without a rhythm, active {activity:.0f} % of the time, and rests between",
    ),
    FactKind.SERVER_POLLS: ("the launching thread polls meanwhile, with {cores:.2f} cores",),
    FactKind.PROCESSES_HIDDEN: ("the processes cannot be seen", " ({0})"),
    FactKind.GPM_AT_ZERO: (
        "GPM reads 0 % at {power:.0f} % of the power limit, which is not possible",
    ),
    FactKind.WITHOUT_GPM: ("judged without GPM: utilization counts copies and spinning too",),
}


def worst_level(levels: Iterable[str]) -> str:
    return min(levels, key=WORST_FIRST.index, default=UNKNOWN)


def duration(seconds: float) -> str:
    """As coarse as it may be: it stands in sentences that are written each second."""
    if seconds < SOON:
        return f"{seconds:.0f} s"
    if seconds < 60:
        return f"{seconds // 10 * 10:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 3600 else f"{seconds // 3600:.0f} h"


def figure(value: float) -> str:
    """Two digits that count, or all before the point: 0.042, 3.9, 120."""
    if 0 < value < 0.01:
        return "< 0.01"
    return f"{value:.2g}" if value < 9.95 else f"{value:.0f}"


def rate(moved: float | None, limit: float | None, path: str) -> str:
    """Bytes a second of their limit, where one is known: `39 of 55 GB/s`; of networks in bits."""
    times, unit = (8, "Gb/s") if path in ("network", "infiniband") else (1, "GB/s")
    shown = ["-" if one is None else figure(times * one / 1e9) for one in (moved, limit)]
    return f"{shown[0]} {unit}" if limit is None else f"{shown[0]} of {shown[1]} {unit}"


class _Amount(float):
    """A number that a word after it agrees with."""

    def __format__(self, spec: str) -> str:
        if spec in ("rate", "bits"):
            return figure(8 * self if spec == "bits" else self)
        if spec == "duration":
            return duration(self)
        one, bar, many = spec.removeprefix("~").partition("|")
        if not bar:
            return super().__format__(spec)
        singular = round(self) == 1
        if one == "once":
            return one if singular else f"{self:.0f} {many}"
        word = one if singular else many
        return word if spec.startswith("~") else f"{self:.0f} {word}"


def _scaled(value: float, unit: str) -> _Amount:
    scale = SCALES.get(unit, 1.0)
    return _Amount(value * scale)


def _given(figures: Iterable[Figure], names: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if names:
        given |= {"names": ", ".join(names), "n": _Amount(len(names))}
        given |= {"further": ", ".join(names[2:]), "path": PATHS.get(names[0], names[0])}
    for name, value, limit, unit in figures:
        given[name] = _scaled(value, unit)
        if limit is not None:
            given[f"{name}_limit"] = _scaled(limit, unit)
    return given


def _sentence(parts: Parts, names: Sequence[str], given: Mapping[str, Any]) -> str:
    there = {*given, *map(str, range(len(names)))}
    known = (part for part in parts if there.issuperset(_asked(part)))
    return "".join(part.format(*names, **given) for part in known)


def _asked(part: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(part) if name is not None]


def fact_text(fact: Fact) -> str:
    """A fact in words: a clause without the GPU's name."""
    given = _given(fact.figures, fact.names)
    if fact.gpu is not None:
        given["gpu"] = fact.gpu.index
    return _sentence(FACTS[FactKind(fact.kind)], fact.names, given)


def finding_text(finding: Finding, *, named: bool = True) -> str:
    """A finding in words, `GPU 3: ...` if it is about one, unless that is not to be `named`."""
    fault = by_kind()[finding.kind]
    given = _given(finding.figures, finding.names)
    given["device"] = finding.device
    given |= {name: term.found(finding) for name, term in fault.terms.items()}
    sentence = _sentence(fault.sentence, finding.names, given)
    return f"GPU {finding.gpu.index}: {sentence}" if named and finding.gpu else sentence


CALLS = {
    Severity.CRITICAL: "critical: pages somebody at once",
    Severity.WARNING: "warning: a message, no call",
    Severity.INFO: "info: no call",
}
"""What the alert of a severity does, as alerts/routing.py sends it."""


def notifies(severity: Severity, alert: str, when: str = "") -> str:
    """`alert DgxGpuMissing (critical: pages somebody at once) fires after 1 min`; or `when`."""
    known = f"alert {alert} ({CALLS[severity]}) {when}".rstrip()
    return known if alert else f"{severity}: no alert"


def after(hold: str, stood: float | None = None) -> str:
    """Return when the alert fires of a fault that must last, and has `stood` for so long (s)."""
    wanted = seconds(hold)
    if stood is not None and stood >= wanted:
        return "fires now"
    return f"fires after {duration(wanted)}" if wanted else "fires at once"


def wait(hold: float) -> str:
    """Return the first step while a read is late for less than so many seconds."""
    return f"Nothing yet: a late read ends by itself. Act if it lasts for {duration(hold)}."


def figures_document(figures: Iterable[Figure]) -> Document:
    """Figures as numbers, by name; `limit` is what they were held against."""
    return {
        name: {"value": value, "limit": limit, "unit": unit} for name, value, limit, unit in figures
    }


def fact_document(fact: Fact) -> Document:
    return {
        "kind": fact.kind.value,
        "sentence": fact_text(fact),
        "figures": figures_document(fact.figures),
        "names": list(fact.names),
        "gpu": fact.gpu.labels[0] if fact.gpu else None,
    }


def finding_notifies(finding: Finding, stood: float | None = None) -> str:
    fault = by_kind()[finding.kind]
    return notifies(finding.severity, fault.alert, after(fault.hold, stood))


def finding_document(finding: Finding, stood: float | None = None) -> Document:
    """A finding that has `stood` for so long (s), as sentences (`text` without the GPU's name) and
    as values."""
    return {
        "kind": finding.kind,
        "severity": finding.severity.value,
        "alert": by_kind()[finding.kind].alert,
        "notifies": finding_notifies(finding, stood),
        "action": action(finding),
        "sentence": finding_text(finding),
        "text": finding_text(finding, named=False),
        "gpu": finding.gpu.labels[0] if finding.gpu else None,
        "uuid": finding.gpu.uuid if finding.gpu else None,
        "device": finding.device,
        "figures": figures_document(finding.figures),
        "names": list(finding.names),
    }


def pair_name(pair: Pair) -> str:
    """A state and its cause, `state/cause`."""
    return f"{pair[0].value}/{pair[1].value}"


def shares_document(shares: Mapping[Pair, float]) -> Document:
    """Shares of the last ten seconds, 0-1, by `state/cause`; those above 0."""
    return {pair_name(pair): round(share, 4) for pair, share in shares.items() if share}


def verdict_document(verdict: Verdict, now: float) -> Document:
    """A verdict in words, with how long it has stood at `now` (s) and what to do about it."""
    summary = SUMMARIES[verdict.pair]
    evidence = [fact_text(fact) for fact in verdict.evidence]
    return {
        "state": verdict.state.value,
        "cause": verdict.cause.value,
        "quality": verdict.quality.value,
        "confidence": round(verdict.confidence, 2),
        "seconds": now - verdict.since,
        "gaps": verdict.gaps,
        "summary": summary,
        "sentence": f"{summary}: {', '.join(evidence)}",
        "evidence": evidence,
        "rule": verdict.rule,
        "doubts": [fact_text(fact) for fact in verdict.doubts],
        "advice": advice(verdict),
    }


def verdict_figures(verdict: Verdict) -> Document:
    """The values behind the words: shares of the time, facts with their figures."""
    return {
        "shares": shares_document(verdict.shares),
        "facts": [fact_document(fact) for fact in verdict.evidence],
        "waits_for": verdict.waits_for.uuid if verdict.waits_for else None,
    }
