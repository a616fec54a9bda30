"""The whole machine in one sentence: what is broken first, then what costs work, then the rest."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent.diagnosis.advice import ADVICE, SUMMARIES, peer_advice
from agent.faults.findings import action as first_step
from agent.faults.findings import by_kind
from agent.limits.resolution import PathKey
from agent.model import (
    BUSY,
    LOST_STATES,
    Cause,
    Finding,
    Metric,
    Pair,
    Severity,
    State,
    consecutive,
)
from agent.sources import nvlink, xid
from exporters.live.events import Event
from exporters.live.paths import PathDirection
from exporters.words import PATHS, SOON, duration, finding_text

GOOD, COSTLY, WRONG, UNKNOWN = "good", "costly", "wrong", "unknown"

PATH_OF = {
    Cause.NVLINK: "nvlink",
    Cause.INFINIBAND: "infiniband",
    Cause.PCIE: "pcie",
    Cause.DISK: "disk",
    Cause.NETWORK: "network",
}
"""Which data path a verdict speaks of."""

ONLY = "the GPU"

ALIKE = 0.9
"""GPUs whose path carries so much of what the fullest does are not told apart."""

WORTH_TELLING = 0.2
"""Ratio from which the fullest path is told."""

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
    """What costs a GPU that works most, and how much of the last seconds; None if not worth it."""
    waits_for: int | None = None  # the GPU of its job that is late


class PathFullness(NamedTuple):
    """How full one data path is, in one direction."""

    path_direction: PathDirection
    ratio: float
    saturated: bool


@dataclass(frozen=True, slots=True)
class HeadlineFacts:
    """What the sentence is made of."""

    ticked: bool = True
    why_not: str = ""  # why there is no driver; empty while there is one
    driver_known: bool = True  # whether a driver has ever answered, and was not released
    silence: float = 0.0  # s for which the driver has not answered
    gpus: Sequence[GpuSummary] = ()
    full: Sequence[PathFullness] = ()  # in any order
    findings: Sequence[Finding] = ()
    events: Set[Event] | None = None  # errors of late; None: all count as such
    waited_for: Sequence[str] = ()  # who jobs that are hung wait for


def headline(facts: HeadlineFacts) -> tuple[str, str]:
    """Level and sentence."""
    if not facts.ticked:
        return UNKNOWN, "The first readings are under way"
    broken, severity = _broken(facts)
    doing = list(_doing(facts, broken=bool(broken)))
    level = WRONG if severity is Severity.CRITICAL else _level(facts, broken=bool(broken))
    sentence = "; ".join([*broken, *doing])
    return level, sentence[0].upper() + sentence[1:]


def action(facts: HeadlineFacts, gpus: Sequence[Mapping[str, Any]]) -> str:
    """The first thing to do about it; empty where there is nothing. `gpus` as tiles have them."""
    if facts.silence:
        return str(by_kind()["driver_hangs"].do)
    lost = next((gpu["advice"] for gpu in gpus if gpu["lost"]), "")
    found = next((first_step(f) for f in facts.findings if _counts(f, facts)), "")
    fault, of_work = lost or found, _of_work(facts, gpus)
    return f"{fault} For the jobs: {of_work}" if fault and of_work else fault or of_work


def _of_work(facts: HeadlineFacts, gpus: Sequence[Mapping[str, Any]]) -> str:
    """What to do about the state that most GPUs lose time in; one with a known cause goes first."""
    costly = [gpu for gpu in gpus if gpu["advice"] and not gpu["lost"]]
    counts = Counter(gpu["advice"] for gpu in costly if gpu["cause"] != Cause.UNKNOWN.value)
    counts = counts or Counter(gpu["advice"] for gpu in costly)
    if counts:
        return str(counts.most_common(1)[0][0])
    low = next((gpu.pair for gpu in facts.gpus if gpu.pair and costs(gpu.pair)), None)
    beside = _beside(facts.gpus)
    pair = low or (beside[0] if beside else BUSY)
    late = _waited_for(beside[2]) if beside and pair[1] is Cause.PEER else ""
    return peer_advice(late) if late else ADVICE.get(pair, "")


def _level(facts: HeadlineFacts, *, broken: bool) -> str:
    pairs = {gpu.pair for gpu in facts.gpus if gpu.pair}
    if any(state is State.HUNG for state, _ in pairs):
        return WRONG  # critical, as its alert is: the job does not go on by itself
    if broken or _beside(facts.gpus):
        return COSTLY
    if not pairs:
        return UNKNOWN
    return COSTLY if any(costs(p) or p[0] is State.COMMUNICATING for p in pairs) else GOOD


def costs(pair: Pair) -> bool:
    """Whether a GPU in this state does not do the work that it could."""
    return pair[0] in LOST_STATES


def _broken(facts: HeadlineFacts) -> tuple[list[str], Severity]:
    """One clause, or none, and the severity that `check` and the list give it."""
    if facts.silence:
        silent = f"the NVIDIA driver has not answered for {duration(facts.silence)}"
        return [silent], Severity.CRITICAL
    if facts.why_not:
        if not facts.driver_known:
            return [], Severity.INFO
        return [f"no GPU is watched: {facts.why_not}"], Severity.CRITICAL
    lost = [gpu.number for gpu in facts.gpus if gpu.lost]
    if lost:
        left = len(facts.gpus) - len(lost)
        answer = f"{left} of {len(facts.gpus)} answer" if left else "none answers"
        gone = _for([gpu for gpu in facts.gpus if gpu.lost])
        return [f"{_listed(lost)} lost{gone}, {answer}"], Severity.CRITICAL
    found = [finding for finding in facts.findings if _counts(finding, facts)]
    if not found:
        down = [f for f in facts.findings if f.kind == "source_down"]
        return [finding_text(finding) for finding in down[:1]], Severity.WARNING
    more = len(found) - 1
    others = f", and {more} more finding{'s' * (more > 1)}" if more else ""
    return [f"{finding_text(found[0])}{others}"], found[0].severity


def _counts(finding: Finding, facts: HeadlineFacts) -> bool:
    """Whether something is broken now: not only unseen, nor long over, nor told by a verdict."""
    if finding.kind in NO_DATA or finding.severity is Severity.INFO:
        return False
    if finding.kind == "clocks_held_down" and finding.gpu:
        throttled = {g.number for g in facts.gpus if g.pair and g.pair[0] is State.THROTTLED}
        return finding.gpu.index not in throttled
    counter = COUNTERS.get(finding.kind)
    if counter is None or finding.gpu is None or facts.events is None:
        return True
    return (counter.name, finding.gpu, finding.device) in facts.events


def _doing(facts: HeadlineFacts, *, broken: bool) -> Iterator[str]:
    """What the GPUs do, the costly first, and the data path that tells most."""
    if facts.silence:
        if facts.gpus:
            yield f"nothing is known of {_gpus_named(facts.gpus, facts.gpus)}"
        return
    if facts.why_not:
        if not facts.driver_known:
            yield f"no GPU is watched: {facts.why_not}"
        return
    if not facts.gpus:
        yield "the NVIDIA driver sees no GPU"
    groups = _groups([gpu for gpu in facts.gpus if not gpu.lost])
    for pair, gpus in groups:
        who = _gpus_named(gpus, facts.gpus)
        hung = pair is not None and pair[0] is State.HUNG
        waits = _waits(facts.waited_for) * hung
        verb = " is" * (who == ONLY and pair is not None and not _settling(gpus))
        yield f"{who}{verb} {_words(pair, gpus)}{waits}"
    beside = _beside(facts.gpus)
    if beside is not None:
        pair, share, gpus = beside
        who, are = _gpus_named(gpus, facts.gpus), "is" if len(gpus) == 1 else "are"
        yield f"{100 * share:.0f} % of the time {who} {are} {_summary(pair, gpus)}"
        return
    known = [pair for pair, _ in groups if pair]
    if known and (telling := _telling(facts.full, known[0], broken=broken)):
        yield telling


def _beside(gpus: Iterable[GpuSummary]) -> tuple[Pair, float, list[GpuSummary]] | None:
    """What costs the GPUs that work most of all, their mean share of it, and which GPUs."""
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


def _summary(pair: Pair, gpus: Sequence[GpuSummary]) -> str:
    """`starved by disk`; `waiting for GPU 1`."""
    late = _waited_for(gpus) if pair[1] is Cause.PEER else ""
    return f"waiting for {late}" if late else SUMMARIES[pair]


def _waited_for(gpus: Iterable[GpuSummary]) -> str:
    """The GPU that all of them wait for; empty if that is not one."""
    late = {gpu.waits_for for gpu in gpus}
    return "" if len(late) != 1 or None in late else f"GPU {late.pop()}"


def _waits(names: Sequence[str]) -> str:
    first, more = names[:1], len(names) - 1
    return "".join(f", waiting for {one}" for one in first) + f" and {more} more" * (more > 0)


def _groups(gpus: Sequence[GpuSummary]) -> list[tuple[Pair | None, list[GpuSummary]]]:
    """GPUs by verdict: what costs work first, then by number."""
    groups: dict[Pair | None, list[GpuSummary]] = {}
    for gpu in gpus:
        groups.setdefault(gpu.pair, []).append(gpu)
    return sorted(groups.items(), key=_weight)


def _weight(group: tuple[Pair | None, list[GpuSummary]]) -> tuple[bool, bool, int, int]:
    pair, gpus = group
    costly = pair is not None and costs(pair)
    rank = LOST_STATES.index(pair[0]) if pair and costly else 0
    return not costly, bool(pair and pair[1] is Cause.UNKNOWN), -len(gpus), rank


def _settling(gpus: Sequence[GpuSummary]) -> bool:
    return all(gpu.settling for gpu in gpus)


def _words(pair: Pair | None, gpus: Sequence[GpuSummary]) -> str:
    if pair is None:
        return "cannot be judged"
    if _settling(gpus):
        return f"{'were' if len(gpus) > 1 else 'was'} {SUMMARIES[pair]}; this seems to be over"
    if pair[0] not in LOST_STATES:
        return SUMMARIES[pair]
    share, since = _share(pair, gpus), _for(gpus)
    return f"{_summary(pair, gpus)}{share}{',' * bool(share and since)}{since}"


def _share(pair: Pair, gpus: Sequence[GpuSummary]) -> str:
    """How much of the time it costs: the one figure that says how bad it is."""
    shares = [gpu.share for gpu in gpus if gpu.share is not None]
    if pair[0] is not State.STARVED or not shares:
        return ""
    return f", {100 * sum(shares) / len(shares):.0f} % of the time"


def _for(gpus: Sequence[GpuSummary]) -> str:
    seconds = max(gpu.seconds for gpu in gpus)
    return f" for {duration(seconds)}" if seconds >= SOON else ""


def _telling(full: Iterable[PathFullness], pair: Pair, *, broken: bool) -> str:
    """The path that the first verdict speaks of; else the fullest, where it is full, or where
    there is nothing worse to tell."""
    paths = sorted(full, key=lambda f: f.ratio / f.path_direction.threshold, reverse=True)
    named = PATH_OF.get(pair[1])
    of_verdict = [f for f in paths if f.path_direction.key.path == named]
    others = [f for f in paths if f.saturated or not (broken or costs(pair))]
    chosen = next(iter(of_verdict or others), None)
    if chosen is None or chosen.ratio < WORTH_TELLING:
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
