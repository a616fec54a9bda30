"""The whole machine in one sentence: what is broken first, then what costs work, then the rest."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from agent.diagnosis.advice import ALERTS, SUMMARIES, of_each, severity
from agent.faults.findings import USUAL, action, by_kind
from agent.faults.promql import seconds
from agent.faults.thresholds import AlertThresholds
from agent.jobs.job import percent
from agent.model import BUSY, LOST_STATES, Cause, Finding, Pair, Severity, State
from agent.ranges import consecutive
from exporters.messages import (
    COSTLY,
    GOOD,
    LEVELS,
    SOON,
    UNKNOWN,
    WORST_FIRST,
    WRONG,
    after,
    duration,
    finding_notifies,
    finding_text,
    notifies,
    wait,
    worst_level,
)

ONLY = "the GPU"

STANDS = 20.0
"""Seconds from which what costs now is shown, whatever cost more before."""

NO_DATA = ("source_down", "values_absent")
"""Findings that say that something cannot be seen, not that it is broken: for the list alone."""


class GpuSummary(NamedTuple):
    """One GPU as far as the sentence goes; `pair` is None where nothing can be judged."""

    number: int  # NVML's index
    pair: Pair | None
    seconds: float = 0.0  # for which that has been so, or the GPU has been lost
    lost: bool = False
    share: float | None = None  # of the window that went to `pair`
    beside: tuple[Pair, float] | None = None
    """Largest loss of the window, and its share; None if it is small."""
    why: str = ""  # why there is no `pair`, where that is as it should be
    advice: str = ""  # what to do about `pair`
    waits_for: int | None = None  # the GPU of its job that is late
    window: float = 0.0  # seconds that shares are of; 0: the last few
    spent: Mapping[tuple[State, float], float] = MappingProxyType({})
    """Share of a state in so many seconds up to now, where at least half of them are known."""


@dataclass(frozen=True, slots=True)
class HeadlineFacts:
    """Facts from which the headline is made."""

    ticked: bool = True
    why_not: str = ""  # why there is no driver; empty while there is one
    driver_known: bool = True  # whether a driver has ever answered, and was not released
    silence: float = 0.0  # s for which the driver has not responded
    gpus: Sequence[GpuSummary] = ()
    full: bool = False  # a link is at its limit
    findings: Sequence[Finding] = ()
    over: Set[Finding] = frozenset()  # of which only the counter of events is left
    waited_for: Sequence[str] = ()  # who jobs that are hung wait for
    thresholds: AlertThresholds = USUAL
    notices: Mapping[Finding, str] = field(default_factory=dict)  # what their alerts do


class Clause(NamedTuple):
    """One thing that is so: how grave it is, what to do first, and the runbook's page for it."""

    level: str
    sentence: str
    action: str = ""
    alert: str = ""
    notifies: str = ""  # its alert, how grave that is, and when it fires


def banner(facts: HeadlineFacts) -> list[Clause]:
    """One or two, the graver first: what is wrong with the hardware, and what the GPUs do."""
    if not facts.ticked:
        return [Clause(UNKNOWN, "the first readings are under way")]
    broken = _broken(facts)
    doing = list(_doing(facts))
    shown = "; ".join(one.sentence for one in doing)
    first = next((one for one in doing if one.action), None)
    work = (
        [Clause(worst_level(c.level for c in doing), shown, *(first or doing[0])[2:])]
        if doing
        else []
    )
    return sorted([*broken, *work], key=lambda one: WORST_FIRST.index(one.level))


def headline(clauses: Sequence[Clause]) -> tuple[str, str, str]:
    """The banner in one: level, sentence, and what to do first; empty where there is nothing."""
    sentence = "; ".join(one.sentence for one in clauses)
    to_do = " Also: ".join(one.action for one in clauses if one.action)
    device = re.match(r"[a-z]+\d", sentence)  # md0, mlx5_0: names stay as they are
    shown = sentence if device else sentence[0].upper() + sentence[1:]
    return worst_level(one.level for one in clauses), shown, to_do


def _broken(facts: HeadlineFacts) -> list[Clause]:
    if facts.silence:
        return [
            _clause(
                "driver_hangs",
                f"the NVIDIA driver has not responded for {duration(facts.silence)}",
                facts.silence,
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
        stood = max(gpu.seconds for gpu in lost)
        return [_clause("gpus_missing", f"{names} lost{_for(lost)}, {answer}", stood)]
    found = [finding for finding in facts.findings if _counts(finding, facts)]
    more = len(found) - 1
    others = f", {more} more finding{'s' * (more > 1)} below" if more > 0 else ""
    down = (f for f in facts.findings if f.kind == "source_down" and f.severity != Severity.INFO)
    first = next(iter(found or down), None)
    if first is None:
        return []
    fault, text = by_kind()[first.kind], f"{finding_text(first)}{others}"
    calls = facts.notices.get(first) or finding_notifies(first)
    return [Clause(LEVELS[first.severity], text, action(first), fault.alert, calls)]


def _clause(kind: str, sentence: str, stood: float) -> Clause:
    """A fault whose sentence says more here; its cure is that of its declaration, a late read's
    once it has `stood` for as long as its alert asks (s)."""
    fault = by_kind()[kind]
    calls = notifies(Severity.CRITICAL, fault.alert, after(fault.hold, stood))
    if kind == "driver_hangs" and stood < seconds(fault.hold):
        return Clause(COSTLY, sentence, wait(seconds(fault.hold)), fault.alert, calls)
    return Clause(WRONG, sentence, str(fault.do), fault.alert, calls)


def _counts(finding: Finding, facts: HeadlineFacts) -> bool:
    """Return whether something is broken now: not only unseen, nor long over, nor shown by a
    verdict."""
    if finding.kind in NO_DATA or finding.severity is Severity.INFO:
        return False
    if finding.kind == "clocks_held_down" and finding.gpu:
        throttled = {g.number for g in facts.gpus if g.pair and g.pair[0] is State.THROTTLED}
        return finding.gpu.index not in throttled
    return finding not in facts.over


def _doing(facts: HeadlineFacts) -> Iterator[Clause]:
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
    there = [gpu for gpu in facts.gpus if not gpu.lost]
    main = _main_loss(there)
    alike: dict[tuple[Pair | None, str], list[GpuSummary]] = {}
    for gpu in there:
        alike.setdefault((shown(gpu, main), gpu.why), []).append(gpu)
    groups = sorted(((pair, its) for (pair, _), its in alike.items()), key=_weight)
    for pair, gpus in groups:
        yield _of_group(pair, gpus, facts)


def _of_group(pair: Pair | None, gpus: Sequence[GpuSummary], facts: HeadlineFacts) -> Clause:
    """Return the clause for GPUs of one verdict: of the window, then what they do now."""
    who, several = _gpus_named(gpus, facts.gpus), len(gpus) > 1
    if pair is None:
        why = gpus[0].why or "cannot be judged"
        are = "" if why.startswith("cannot") else " are" if several else " is"
        return Clause(GOOD if are else UNKNOWN, f"{who}{are} {why}{_for(gpus) * (not are)}")
    level = LEVELS[severity(pair)]
    if pair[0] is State.COMMUNICATING and facts.full:
        level = COSTLY  # as the alert of links that are full
    names = facts.waited_for if pair[0] is State.HUNG else ()
    waits = "".join(f", waiting for {one}" for one in names[:1])
    waits += f" and {len(names) - 1} more" * (len(names) > 1)
    text = f"{who}{' is' * (who == ONLY)} {_words(pair, gpus)}{waits}"
    to_do = next((gpu.advice for gpu in gpus if gpu.advice), "")
    return Clause(level, text, to_do, *_alert_of(pair, facts.thresholds, gpus))


def _alert_of(
    pair: Pair, limits: AlertThresholds, gpus: Sequence[GpuSummary] = ()
) -> tuple[str, str]:
    """Return the alert of a state, and how grave it is, from which share of the time on."""
    grade = severity(pair)
    if grade is None:
        return "", ""
    alert, shares = (
        ALERTS[pair[0]][0],
        {
            State.STARVED: (
                (limits.starved_share, limits.starved_window),
                (limits.starved_hours_share, limits.starved_hours),
            ),
            State.COMMUNICATING: ((limits.exposed_share, limits.starved_window),),
            State.THROTTLED: ((limits.throttled_share, limits.throttled_window),),
            State.HELD: ((limits.held_share, limits.held_window),),
        },
    )
    known = {
        f"{100 * share:.0f} % of {duration(seconds(window))}": any(
            gpu.spent.get((pair[0], seconds(window)), 0.0) >= share for gpu in gpus
        )
        for share, window in shares.get(pair[0], ())
    }
    now, of = " or ".join(one for one, over in known.items() if over), " or ".join(known)
    when = f"fires now (over {now})" if now else f"fires from {of}" if of else ""
    return alert, notifies(grade, alert, when)


def _now(pair: Pair, gpus: Sequence[GpuSummary]) -> str:
    """`, busy now`; `, 3 of 8 now`: what GPUs do now that lost time in the window."""
    same = sum(gpu.pair == pair for gpu in gpus)
    if same:
        return f", {same} of {len(gpus)} now"
    states = dict.fromkeys(SUMMARIES[gpu.pair] for gpu in gpus if gpu.pair)
    return f", {' or '.join(states)} now"


def of_window(share: float, window: float) -> str:
    """`24 % of the last 15 min`."""
    return f"{percent(share)} of the {f'last {duration(window)}' if window else 'time'}"


def beside_words(gpu: GpuSummary) -> str:
    """Return the loss of a GPU at work in words: `starved by disk, 12 % of the last 15 min`."""
    pair, share = gpu.beside or (BUSY, 0.0)
    return f"{_summary(pair, [gpu])}, {of_window(share, gpu.window)}"


def _summary(pair: Pair, gpus: Sequence[GpuSummary]) -> str:
    """`starved by disk`; `waiting for GPU 1`."""
    late = {gpu.waits_for for gpu in gpus} if pair[1] is Cause.PEER else {None}
    only = "only " * (pair[0] is State.COMMUNICATING and any(gpu.pair != pair for gpu in gpus))
    if len(late) == 1 and None not in late:
        return f"waiting for GPU {late.pop()}"
    return f"{only}{of_each(SUMMARIES[pair]) if gpus[1:] else SUMMARIES[pair]}"


def _main_loss(gpus: Iterable[GpuSummary]) -> Pair | None:
    """Return the largest loss of GPUs that are at work now; a known cause before an unknown one."""
    sums: dict[Pair, float] = {}
    for gpu in gpus:
        at_work = gpu.pair and not costs(gpu.pair)
        if at_work and gpu.beside and gpu.beside[0] != gpu.pair:
            sums[gpu.beside[0]] = sums.get(gpu.beside[0], 0.0) + gpu.beside[1]
    return max(sums, key=lambda pair: (pair[1] is not Cause.UNKNOWN, sums[pair]), default=None)


def shown(gpu: GpuSummary, main: Pair | None) -> Pair | None:
    """Return the pair that the headline gives a GPU: what it lost in the window, unless that is
    small or what costs now has stood for long."""
    if gpu.pair is None or gpu.beside is None or gpu.pair[0] in (State.HUNG, State.HELD):
        return gpu.pair
    if not costs(gpu.pair):
        return main if gpu.beside[0] == main else gpu.pair
    stands = gpu.seconds >= STANDS or not costs(gpu.beside[0])
    return gpu.pair if stands else gpu.beside[0]


def costs(pair: Pair) -> bool:
    """Return whether a GPU in this state does less work than it could."""
    return pair[0] in LOST_STATES


def _weight(group: tuple[Pair | None, list[GpuSummary]]) -> tuple[bool, int, int]:
    """The gravest first, then the most."""
    pair, gpus = group
    costly = pair is not None and costs(pair)
    rank = WORST_FIRST.index(LEVELS[severity(pair)]) if pair else 0
    return not costly, rank * costly, -len(gpus)


def _words(pair: Pair, gpus: Sequence[GpuSummary]) -> str:
    by_now = all(gpu.pair == pair for gpu in gpus)
    if not costs(pair) and (by_now or all((gpu.beside or [0])[0] != pair for gpu in gpus)):
        return SUMMARIES[pair]
    shares = [one[1] if (one := gpu.beside) and one[0] == pair else gpu.share for gpu in gpus]
    known = [share for share in shares if share is not None]
    part = (
        f", {of_window(sum(known) / len(known), max(gpu.window for gpu in gpus))}" if known else ""
    )
    shown = part if not by_now or pair[0] is State.STARVED else ""
    since, now = (_for(gpus) * (not shown), "") if by_now else ("", _now(pair, gpus))
    return f"{_summary(pair, gpus)}{since}{shown}{now}"


def _for(gpus: Sequence[GpuSummary]) -> str:
    seconds = max(gpu.seconds for gpu in gpus)
    return f" for {duration(seconds)}" if seconds >= SOON else ""


def _gpus_named(gpus: Sequence[GpuSummary], all_of: Sequence[GpuSummary]) -> str:
    """`GPU 3`, `GPUs 1-3 and 5`, or all of them: `8 GPUs`, `the GPU`."""
    if len(gpus) == len(all_of):
        return f"{len(gpus)} GPUs" if len(gpus) != 1 else ONLY
    return _listed([gpu.number for gpu in gpus])


def _listed(indices: Sequence[int]) -> str:
    runs = consecutive(indices)
    parts = [p for r in runs for p in ([f"{r[0]}-{r[-1]}"] if len(r) > 2 else map(str, r))]
    names = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"GPU{'s' * (len(indices) > 1)} {names}"
