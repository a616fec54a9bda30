"""The whole machine in one sentence: what is broken first, then what costs work, then the rest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from agent.diagnosis.advice import ALERTS, SUMMARIES, pair_advice, severity
from agent.faults.findings import action, by_kind
from agent.limits.resolution import PathKey
from agent.model import BUSY, LOST_STATES, Cause, Finding, Metric, Pair, Severity, State
from agent.ranges import consecutive
from agent.sources import nvlink, xid
from exporters.live.events import Event
from exporters.live.paths import PathDirection
from exporters.messages import (
    COSTLY,
    GOOD,
    LEVELS,
    PATHS,
    SOON,
    UNKNOWN,
    WORST_FIRST,
    WRONG,
    duration,
    finding_text,
    worst_level,
)

PATH_OF = {
    Cause.NVLINK: "nvlink",
    Cause.INFINIBAND: "infiniband",
    Cause.PCIE: "pcie",
    Cause.DISK: "disk",
    Cause.NETWORK: "network",
}
"""Data path that a verdict is about."""

ONLY = "the GPU"

ALIKE = 0.9
"""GPUs whose path carries so much of what the fullest does are not distinguished."""

WORTH_SHOWING = 0.2
"""Ratio from which the fullest path is reported."""

NO_DATA = ("source_down", "values_absent")
"""Findings that say that something cannot be seen, not that it is broken: for the list alone."""

COUNTERS: Mapping[str, Metric] = {"xid": xid.ERRORS, "link_errors": nvlink.ERRORS}
"""Findings that a counter of events makes: it stays, and the event is over."""


class GpuSummary(NamedTuple):
    """One GPU as far as the sentence goes; `pair` is None where nothing can be judged."""

    number: int  # NVML's index
    pair: Pair | None
    seconds: float = 0.0  # for which that has been so, or the GPU has been lost
    lost: bool = False
    settling: bool = False  # it does something else since a moment ago: `pair` is of before
    share: float | None = None  # of the last seconds that went to `pair`
    beside: tuple[Pair, float] | None = None
    """Largest loss of a GPU at work, and its share of the last seconds; None if it is small."""
    why: str = ""  # why there is no `pair`, where that is as it should be
    advice: str = ""  # what to do about `pair`
    waits_for: int | None = None  # the GPU of its job that is late


class PathFullness(NamedTuple):
    """Utilisation of one data path, in one direction."""

    path_direction: PathDirection
    ratio: float
    saturated: bool


@dataclass(frozen=True, slots=True)
class HeadlineFacts:
    """Facts from which the headline is made."""

    ticked: bool = True
    why_not: str = ""  # why there is no driver; empty while there is one
    driver_known: bool = True  # whether a driver has ever answered, and was not released
    silence: float = 0.0  # s for which the driver has not answered
    gpus: Sequence[GpuSummary] = ()
    full: Sequence[PathFullness] = ()  # in any order
    findings: Sequence[Finding] = ()
    events: Set[Event] | None = None  # errors of late; None: all count as such
    waited_for: Sequence[str] = ()  # who jobs that are hung wait for


class Clause(NamedTuple):
    """One thing that is so: how grave it is, what to do first, and the runbook's page for it."""

    level: str
    sentence: str
    action: str = ""
    alert: str = ""


def banner(facts: HeadlineFacts) -> list[Clause]:
    """One or two: what is wrong with the hardware, and what the GPUs do."""
    if not facts.ticked:
        return [Clause(UNKNOWN, "the first readings are under way")]
    broken = _broken(facts)
    doing = list(_doing(facts, broken=bool(broken)))
    shown = "; ".join(one.sentence for one in doing)
    first = next((one for one in doing if one.action), None)
    work = (
        [Clause(worst_level(c.level for c in doing), shown, *(first or doing[0])[2:])]
        if doing
        else []
    )
    return [*broken, *work]


def headline(clauses: Sequence[Clause]) -> tuple[str, str, str]:
    """The banner in one: level, sentence, and what to do first; empty where there is nothing."""
    sentence = "; ".join(one.sentence for one in clauses)
    to_do = " For the jobs: ".join(one.action for one in clauses if one.action)
    return worst_level(one.level for one in clauses), sentence[0].upper() + sentence[1:], to_do


def _broken(facts: HeadlineFacts) -> list[Clause]:
    """Return the clause on faults of the hardware, or none."""
    if facts.silence:
        return [
            _clause(
                "driver_hangs", f"the NVIDIA driver has not answered for {duration(facts.silence)}"
            )
        ]
    if facts.why_not:
        shown = f"no GPU is watched: {facts.why_not}"
        return [Clause(WRONG, shown)] if facts.driver_known else []
    lost = [gpu for gpu in facts.gpus if gpu.lost]
    if lost:
        left = len(facts.gpus) - len(lost)
        answer = f"{left} of {len(facts.gpus)} answer" if left else "none answers"
        names = _listed([gpu.number for gpu in lost])
        return [_clause("gpus_missing", f"{names} lost{_for(lost)}, {answer}")]
    found = [finding for finding in facts.findings if _counts(finding, facts)]
    more = len(found) - 1
    others = f", and {more} more finding{'s' * (more > 1)}" if more > 0 else ""
    first = next(iter(found or [f for f in facts.findings if f.kind == "source_down"]), None)
    if first is None:
        return []
    fault, text = by_kind()[first.kind], f"{finding_text(first)}{others}"
    return [Clause(LEVELS[first.severity], text, action(first), fault.alert)]


def _clause(kind: str, sentence: str) -> Clause:
    """A fault whose sentence says more here; its cure is that of its declaration."""
    fault = by_kind()[kind]
    return Clause(WRONG, sentence, str(fault.do), fault.alert)


def _counts(finding: Finding, facts: HeadlineFacts) -> bool:
    """Return whether something is broken now: not only unseen, nor long over, nor shown by a
    verdict."""
    if finding.kind in NO_DATA or finding.severity is Severity.INFO:
        return False
    if finding.kind == "clocks_held_down" and finding.gpu:
        throttled = {g.number for g in facts.gpus if g.pair and g.pair[0] is State.THROTTLED}
        return finding.gpu.index not in throttled
    counter = COUNTERS.get(finding.kind)
    if counter is None or finding.gpu is None or facts.events is None:
        return True
    return (counter.name, finding.gpu, finding.device) in facts.events


def _doing(facts: HeadlineFacts, *, broken: bool) -> Iterator[Clause]:
    """Return the clauses on the GPUs' work, the most costly first, and on the busiest data path."""
    if facts.silence:
        if facts.gpus:
            yield Clause(UNKNOWN, f"nothing is known of {_gpus_named(facts.gpus, facts.gpus)}")
        return
    if facts.why_not:
        if not facts.driver_known:
            yield Clause(UNKNOWN, f"no GPU is watched: {facts.why_not}")
        return
    if not facts.gpus:
        yield Clause(UNKNOWN, "the NVIDIA driver sees no GPU")
    groups = _groups([gpu for gpu in facts.gpus if not gpu.lost])
    full = any(f.saturated and f.path_direction.key.path != "hbm" for f in facts.full)
    for pair, gpus in groups:
        yield _of_group(pair, gpus, facts, full=full)
    if beside := _beside(facts.gpus):
        at_work = [gpu for gpu in facts.gpus if gpu.pair and not costs(gpu.pair)]
        yield _of_beside(*beside, at_work, facts)
        return
    known = [pair for pair, _ in groups if pair]
    if known and (fullest := _of_fullest(facts.full, known[0], broken=broken)):
        yield Clause(GOOD, fullest)


def _of_group(
    pair: Pair | None, gpus: Sequence[GpuSummary], facts: HeadlineFacts, *, full: bool
) -> Clause:
    """Return the clause for GPUs of one verdict."""
    who, several = _gpus_named(gpus, facts.gpus), len(gpus) > 1
    if pair is None:
        why = gpus[0].why or "cannot be judged"
        are = "" if why.startswith("cannot") else " are" if several else " is"
        return Clause(GOOD if are else UNKNOWN, f"{who}{are} {why}")
    level = LEVELS[severity(pair)]
    if pair[0] is State.COMMUNICATING and full:
        level = COSTLY  # as the alert of links that are full
    hung = pair[0] is State.HUNG
    if all(gpu.settling for gpu in gpus):
        were = "were" if several else "was"
        return Clause(level, f"{who} {were} {SUMMARIES[pair]}; this seems to be over")
    text = f"{who}{' is' * (who == ONLY)} {_words(pair, gpus)}{_waits(facts.waited_for) * hung}"
    return Clause(level, text, gpus[0].advice, ALERTS.get(pair[0], ("",))[0])


def _of_beside(
    pair: Pair,
    share: float,
    gpus: Sequence[GpuSummary],
    at_work: Sequence[GpuSummary],
    facts: HeadlineFacts,
) -> Clause:
    """Return the clause for GPUs at work that lose time to one cause."""
    it = "it" if len(gpus) == 1 else "they"
    who = it if len(gpus) == len(at_work) else _gpus_named(gpus, facts.gpus)
    are = "is" if len(gpus) == 1 else "are"
    text = f"{100 * share:.0f} % of the time {who} {are} {_summary(pair, gpus)}"
    to_do = pair_advice(pair, gpus[0].waits_for)
    return Clause(LEVELS[severity(pair)], text, to_do, ALERTS.get(pair[0], ("",))[0])


def beside_words(gpu: GpuSummary) -> str:
    """Return the words for the loss of a GPU at work: `12 % of the time starved by disk`."""
    pair, share = gpu.beside or (BUSY, 0.0)
    return f"{100 * share:.0f} % of the time {_summary(pair, [gpu])}"


def _summary(pair: Pair, gpus: Sequence[GpuSummary]) -> str:
    """`starved by disk`; `waiting for GPU 1`."""
    late = {gpu.waits_for for gpu in gpus} if pair[1] is Cause.PEER else {None}
    only = "only " * (pair[0] is State.COMMUNICATING)
    if len(late) == 1 and None not in late:
        return f"waiting for GPU {late.pop()}"
    return f"{only}{SUMMARIES[pair]}"


def _beside(gpus: Iterable[GpuSummary]) -> tuple[Pair, float, list[GpuSummary]] | None:
    """Return the largest loss of the GPUs at work, their mean share of it, and those GPUs."""
    by_pair: dict[Pair, list[tuple[float, GpuSummary]]] = {}
    for gpu in gpus:
        if gpu.beside is not None and not gpu.settling:
            by_pair.setdefault(gpu.beside[0], []).append((gpu.beside[1], gpu))
    if not by_pair:
        return None
    pair = max(
        by_pair, key=lambda p: (p[1] is not Cause.UNKNOWN, sum(share for share, _ in by_pair[p]))
    )
    shares, costly = zip(*by_pair[pair], strict=True)
    return pair, sum(shares) / len(shares), list(costly)


def _waits(names: Sequence[str]) -> str:
    first, more = names[:1], len(names) - 1
    return "".join(f", waiting for {one}" for one in first) + f" and {more} more" * (more > 0)


def costs(pair: Pair) -> bool:
    """Return whether a GPU in this state does less work than it could."""
    return pair[0] in LOST_STATES


def _groups(gpus: Sequence[GpuSummary]) -> list[tuple[Pair | None, list[GpuSummary]]]:
    """GPUs by verdict: the gravest first, then the most."""
    groups: dict[tuple[Pair | None, str], list[GpuSummary]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.pair, gpu.why), []).append(gpu)
    found = [(pair, its) for (pair, _), its in groups.items()]
    return sorted(found, key=_weight)


def _weight(group: tuple[Pair | None, list[GpuSummary]]) -> tuple[bool, int, int]:
    pair, gpus = group
    costly = pair is not None and costs(pair)
    rank = WORST_FIRST.index(LEVELS[severity(pair)]) if pair else 0
    return not costly, rank * costly, -len(gpus)


def _words(pair: Pair, gpus: Sequence[GpuSummary]) -> str:
    if not costs(pair):
        return SUMMARIES[pair]
    share, since = _share(pair, gpus), _for(gpus)
    return f"{_summary(pair, gpus)}{share}{',' * bool(share and since)}{since}"


def _share(pair: Pair, gpus: Sequence[GpuSummary]) -> str:
    """Return the share of the time that it costs: the one figure that shows how bad it is."""
    shares = [gpu.share for gpu in gpus if gpu.share is not None]
    if pair[0] is not State.STARVED or not shares:
        return ""
    return f", {100 * sum(shares) / len(shares):.0f} % of the time"


def _for(gpus: Sequence[GpuSummary]) -> str:
    seconds = max(gpu.seconds for gpu in gpus)
    return f" for {duration(seconds)}" if seconds >= SOON else ""


def _of_fullest(full: Iterable[PathFullness], pair: Pair, *, broken: bool) -> str:
    """The path that the first verdict speaks of; else the fullest, where it is full, or where
    there is nothing worse to report."""
    paths = sorted(full, key=lambda f: f.ratio / f.path_direction.threshold, reverse=True)
    named = PATH_OF.get(pair[1])
    of_verdict = [f for f in paths if f.path_direction.key.path == named]
    others = [f for f in paths if f.saturated or not (broken or costs(pair))]
    chosen = next(iter(of_verdict or others), None)
    if chosen is None or chosen.ratio < WORTH_SHOWING:
        return ""
    alike = [f for f in paths if f.path_direction.key.path == chosen.path_direction.key.path]
    near = {f.path_direction.key.device for f in alike if f.ratio >= ALIKE * chosen.ratio}
    name = _path_name(chosen.path_direction.key, len(near))
    return f"{name} at {100 * chosen.ratio:.0f} % of its limit"


def _path_name(key: PathKey, alike: int) -> str:
    name = PATHS[key.path]
    if not key.gpu:
        return f"{name} {key.device}"
    return name if alike > 1 else f"{name} of GPU {key.gpu}"


def _gpus_named(gpus: Sequence[GpuSummary], all_of: Sequence[GpuSummary]) -> str:
    """`GPU 3`, `GPUs 1-3 and 5`, or all of them: `8 GPUs`, `the GPU`."""
    if len(gpus) == len(all_of):
        return f"{len(gpus)} GPUs" if len(gpus) != 1 else ONLY
    return _listed([gpu.number for gpu in gpus])


def _listed(indices: Sequence[int]) -> str:
    parts = [part for run in consecutive(indices) for part in _run(run)]
    names = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"GPU{'s' * (len(indices) > 1)} {names}"


def _run(run: Sequence[int]) -> list[str]:
    return [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(index) for index in run]
