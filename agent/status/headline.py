"""The groups of GPUs that show the same state, cause, and reason, and the headline: a few clauses
about the machine's faults and the states of its GPUs."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from msgspec.structs import replace

from agent.diagnosis.advice import ALERTS, SUMMARIES, severity
from agent.faults.findings import by_kind
from agent.faults.promql import seconds
from agent.faults.watch import LATE_READ_SECONDS, AlertState
from agent.jobs.job import percent
from agent.model import Cause, Pair, Reason, Snapshot, State
from agent.ranges import gpus_named
from agent.status import words
from agent.status.findings import is_fault, not_good
from agent.status.gpus import Judged, SeenTick, costs, reasons, slowed, summary
from agent.status.jobs import culprit_name
from agent.status.model import AlertStatus, GpuGroup, HeadlineClause, Level
from agent.status.source import silence
from agent.status.words import GRAVEST_FIRST, LEVEL, SOON, began, duration

Members = tuple[Pair | None, list[Judged]]


def grouped(gpus: Sequence[Judged]) -> list[Members]:
    """Group the GPUs by the state, cause, and reason to show. The most severe group is first and,
    among equally severe groups, the largest. A GPU that other GPUs wait for shows its own loss."""
    main, awaited = _main_loss(gpus), {gpu.waits_for for gpu in gpus}
    alike: dict[tuple[Pair | None, str], list[Judged]] = {}
    for gpu in gpus:
        own = gpu.beside.pair if gpu.beside and gpu.number in awaited else main
        alike.setdefault((gpu.shown(own), gpu.why + gpu.detail), []).append(gpu)
    return sorted(((pair, its) for (pair, _), its in alike.items()), key=_weight)


def _main_loss(gpus: Iterable[Judged]) -> Pair | None:
    """Return the largest recent loss of the GPUs that lose no time now. Prefer known causes."""
    sums: dict[Pair, float] = {}
    for gpu in gpus:
        at_work = gpu.pair and not costs(gpu.pair)
        if at_work and gpu.beside and gpu.beside.pair != gpu.pair:
            sums[gpu.beside.pair] = sums.get(gpu.beside.pair, 0.0) + gpu.beside.share
    return max(sums, key=lambda pair: (pair[1] is not Cause.UNKNOWN, sums[pair]), default=None)


def _weight(group: Members) -> tuple[bool, bool, int, int, int]:
    pair, gpus = group
    costly = pair is not None and costs(pair)
    rank = GRAVEST_FIRST.index(LEVEL[severity(pair)]) if pair and costly else 0
    return not gpus[0].lost, not costly, rank, -len(gpus), gpus[0].number


def level_of(pair: Pair | None, gpus: Sequence[Judged], *, full: bool) -> Level | None:
    """Return the level of a group that shows state and cause `pair`. For communication, the level
    is `warning` only if a link is at its limit (`full`), as in the alerting rule."""
    if pair is None:
        first = gpus[0]
        return Level.CRITICAL if first.lost else Level.GOOD if first.sound else None
    if any(gpu.unclear for gpu in gpus):
        return None
    warned = pair[0] is State.COMMUNICATING and full
    return Level.WARNING if warned else LEVEL[severity(pair)]


def group_status(members: Members, snapshot: Snapshot, *, full: bool) -> GpuGroup:
    """Return the status of a group of GPUs."""
    pair, gpus = members
    share, window = _share_of_group(pair, gpus) if pair else (None, None)
    shown = gpus[0].pair == pair and (pair is None or severity(pair))
    why = [*reasons(gpus[0])] if shown else []
    if why and pair and any(gpu.verdict != gpus[0].verdict for gpu in gpus[1:]):
        why[0] = f"for example GPU {gpus[0].number}: {why[0]}"
    for gpu in next(([gpu] for gpu in gpus if slowed(gpu)), []):
        why += [f"GPU {gpu.number} {text}" for text in slowed(gpu)]
    jobs = {gpu.job.receipt.id if gpu.job else None for gpu in gpus}
    return GpuGroup(
        name=gpus_named(gpu.number for gpu in gpus),
        gpus=tuple(gpu.number for gpu in gpus),
        level=level_of(pair, gpus, full=full),
        state=pair[0] if pair else None,
        cause=pair[1] if pair else None,
        reason=gpus[0].reason if pair is None else None,
        text=group_text(pair, gpus),
        share=share,
        window_seconds=window,
        since=began(snapshot, max(gpu.stood(pair) for gpu in gpus)),
        why=tuple(why),
        do=next((gpu.do for gpu in gpus if gpu.do), None) if pair is None or costs(pair) else None,
        job=jobs.pop() if len(jobs) == 1 else None,
    )


def _share_of_group(pair: Pair, gpus: Sequence[Judged]) -> tuple[float | None, int | None]:
    """Return the mean time share of a state and cause, and the window of the share in seconds."""
    windowed = pair[0] is State.STARVED or any(gpu.pair != pair for gpu in gpus)
    verdicts = [gpu.verdict for gpu in gpus if gpu.verdict]
    shares = (
        [share for gpu in gpus if (share := _share(gpu, pair)) is not None]
        if windowed
        else [verdict.shares.get(pair, 0.0) for verdict in verdicts]
    )
    window = max(gpu.window for gpu in gpus) if windowed else 0
    return (round(fmean(shares), 4), window or 10) if shares else (None, None)


def group_text(pair: Pair | None, gpus: Sequence[Judged]) -> str:
    """Return a text about a group's state, for example `starved by disk, 24 % of the last 15 min,
    busy now` or `hung for 2 min, waiting for rank 1 (...)`."""
    if pair is None:
        stood = _for(gpus) * (not gpus[0].sound)
        return f"{gpus[0].why}{stood}"
    text = _words(pair, gpus)
    if pair[0] is State.HUNG:
        hangs = {gpu.job.receipt.id: gpu.job.hang for gpu in gpus if gpu.job and gpu.job.hang}
        names = [culprit_name(one) for hang in hangs.values() for one in hang.culprits]
        text += f", waiting for {names[0]}" if names else ""
        text += f" and {len(names) - 1} more" if names[1:] else ""
    return text


def _words(pair: Pair, gpus: Sequence[Judged]) -> str:
    by_now = all(gpu.pair == pair for gpu in gpus)
    beside = any(gpu.beside and gpu.beside.pair == pair for gpu in gpus)
    if not costs(pair) and (by_now or not beside):
        return summary(pair, gpus)
    share, window = _share_of_group(pair, gpus)
    part = f", {percent(share)} of the last {duration(window)}" if share and window else ""
    part = part if not by_now or pair[0] is State.STARVED else ""
    since, now = (_for(gpus) * (not part), "") if by_now else ("", _now(pair, gpus))
    return f"{_summary(pair, gpus)}{since}{part}{now}"


def _share(gpu: Judged, pair: Pair | None) -> float | None:
    return gpu.beside.share if gpu.beside and gpu.beside.pair == pair else gpu.share


def _summary(pair: Pair, gpus: Sequence[Judged]) -> str:
    """Return a text about a state and cause, such as `starved by disk` or `waiting for GPU 1`."""
    late = {gpu.waits_for for gpu in gpus} if pair[1] is Cause.PEER else {None}
    apart = pair[0] is State.COMMUNICATING and any(gpu.pair != pair for gpu in gpus)
    if len(late) == 1 and None not in late:
        return f"waiting for GPU {late.pop()}"
    its = ", each by its " if gpus[1:] else " by its "
    text = summary(pair, gpus).replace(" by its ", its)
    return f"only {text}" if apart else text


def _now(pair: Pair, gpus: Sequence[Judged]) -> str:
    """Return a text about the current state of GPUs that lost time recently: `, 3 of 8 now`, or `,
    busy now`, or `, ongoing` if the loss was at least half as large in the last 10 s."""
    same = sum(gpu.pair == pair for gpu in gpus)
    if same:
        return f", {same} of {len(gpus)} now"
    lost = fmean(gpu.verdict.shares.get(pair, 0.0) if gpu.verdict else 0.0 for gpu in gpus)
    if 2 * lost >= fmean(_share(gpu, pair) or 0.0 for gpu in gpus):
        return ", ongoing"
    states = dict.fromkeys(SUMMARIES[gpu.pair] for gpu in gpus if gpu.pair)
    return f", {' or '.join(states)} now"


def _for(gpus: Sequence[Judged]) -> str:
    seconds = max(gpu.seconds for gpu in gpus)
    return f" for {duration(seconds)}" if seconds >= SOON else ""


UNSEEN = frozenset({"source_down", "values_absent"})
"""Kinds of findings about missing data. In the headline, other findings have precedence."""

OF_DRIVER = frozenset({"driver_hangs"})
OF_LOST = frozenset({"gpus_missing", "gpu_lost"})


def headline(facts: SeenTick) -> tuple[HeadlineClause, ...]:
    """Return clauses about faults and about the states of the GPUs, most serious first."""
    if facts.snapshot.tick <= 0:
        return (HeadlineClause(level=None, text="The first readings are under way"),)
    work = [*_work(facts)]
    most = 1 + any(clause.level is Level.INFO for clause in work)
    clauses = [*_broken(facts, most), *work]
    waits = {one.id for one in facts.findings if one.can_wait}
    clauses.sort(key=lambda one: bool(waits.intersection(one.findings)))
    return tuple(sorted(clauses, key=lambda one: GRAVEST_FIRST.index(one.level)))


def _broken(facts: SeenTick, most: int) -> Iterator[HeadlineClause]:
    """Yield clauses about at most `most` faults."""
    inventory, told = facts.source.inventory, OF_LOST
    if silent := silence(facts.snapshot):
        yield _driver_hangs(facts, silent)
        most, told = 1, OF_DRIVER | UNSEEN
    elif inventory.why_not:
        return
    lost = [gpu for gpu in facts.gpus if gpu.lost and not silent]
    if lost:
        yield _lost(facts, lost)
        most -= 1
    open_ones = [one for one in facts.findings if is_fault(one) and not one.hidden_by]
    faults = [one for one in open_ones if not (lost or silent) or one.kind not in told]
    for first in sorted(faults, key=lambda one: one.kind in UNSEEN)[:most]:
        yield HeadlineClause(
            level=first.level,
            text=capital(first.text, first.devices),
            findings=(first.id,),
            gpus=tuple(g.number for g in facts.gpus if f"gpu{g.number}" in first.devices),
            since=first.since,
            or_before=first.or_before,
            do=first.do,
            alert=first.alert,
            runbook=first.runbook,
        )


def capital(text: str, devices: Sequence[str] = ()) -> str:
    """Return the text with an initial capital, unless it starts with a device name."""
    return text if text.startswith(tuple(devices) or ("\0",)) else text[:1].upper() + text[1:]


def _clause(
    facts: SeenTick, kinds: frozenset[str], fault_kind: str, text: str, stood: float
) -> HeadlineClause:
    """Return a clause that replaces all findings of the given kinds in the headline."""
    fault = by_kind(facts.source.thresholds)[fault_kind]
    own = [one for one in facts.findings if one.kind in kinds]
    first = min(own, key=lambda one: one.since, default=None)
    return HeadlineClause(
        level=Level(fault.severity),
        text=capital(text),
        findings=tuple(one.id for one in own),
        since=first.since if first else began(facts.snapshot, stood),
        or_before=first is not None and first.or_before,
        do=str(fault.do),
        alert=own[0].alert if own else None,  # until the next search for faults
        runbook=fault.alert.lower(),
    )


def _driver_hangs(facts: SeenTick, silent: float) -> HeadlineClause:
    """Return a clause about a driver that does not respond, without a level until a finding."""
    text = f"the NVIDIA driver has not responded for {duration(silent)}"
    found = _clause(facts, OF_DRIVER, "driver_hangs", text, silent)
    if first := next((one for one in facts.findings if one.id in found.findings), None):
        return replace(found, level=first.level, do=first.do or found.do)
    unmet = not facts.source.inventory.generation
    return replace(found, level=None, do=words.wait(LATE_READ_SECONDS), or_before=unmet)


def _lost(facts: SeenTick, lost: Sequence[Judged]) -> HeadlineClause:
    left = len(facts.gpus) - len(lost)
    number = f"{left} of {len(facts.gpus)}" if left else "none"
    respond = "respond" if left > 1 else "responds"
    stood = max(gpu.seconds for gpu in lost)
    so_long = f" for {duration(stood)}" if stood >= SOON else ""
    text = f"{gpus_named(gpu.number for gpu in lost)} lost{so_long}, {number} {respond}"
    found = _clause(facts, OF_LOST, "gpus_missing", text, stood)
    return replace(found, gpus=tuple(gpu.number for gpu in lost))


def _work(facts: SeenTick) -> Iterator[HeadlineClause]:
    inventory = facts.source.inventory
    if silence(facts.snapshot):
        if facts.gpus:
            text = f"Nothing is known of {_named(facts.gpus, facts.gpus)}"
            yield HeadlineClause(level=None, text=text)
        return
    if inventory.why_not:
        gone = inventory.most > 0 and inventory.reason is not Reason.RELEASED  # not for an upgrade
        level = Level.CRITICAL if gone else None
        yield HeadlineClause(level=level, text=f"No GPU is monitored: {inventory.why_not}")
        return
    if not facts.gpus:
        yield HeadlineClause(level=None, text="The NVIDIA driver sees no GPU")
    there = [gpu for gpu in facts.gpus if not gpu.lost]
    groups = grouped(there)
    if groups:
        yield _of_groups(groups, facts)


def _of_groups(groups: Sequence[Members], facts: SeenTick) -> HeadlineClause:
    """Return a clause about the states of all groups of GPUs. Its first step is that of the most
    serious group with a first step."""
    levels = [level_of(pair, gpus, full=facts.full) for pair, gpus in groups]
    texts = [_of_group(members, facts) for members in groups]
    pair, gpus = next(((p, g) for p, g in groups if any(one.do for one in g)), groups[0])
    alert = _alert(pair[0], facts, gpus) if pair and not any(one.unclear for one in gpus) else None
    costly = bool(pair and pair[0] in ALERTS)
    devices = {f"gpu{gpu.number}" for gpu in gpus}
    return HeadlineClause(
        level=not_good(words.worst_level(levels), facts.findings),
        text=capital("; ".join(texts)),
        findings=tuple(
            one.id
            for one in facts.findings
            if alert and one.runbook == alert.name.lower() and devices >= {*one.devices}
        ),
        gpus=tuple(gpu.number for gpu in gpus),
        since=began(facts.snapshot, max(gpu.stood(pair) for gpu in gpus)) if costly else None,
        do=next((gpu.do for gpu in gpus if gpu.do), None),
        alert=alert,
        runbook=alert.name.lower() if alert else None,
    )


def _of_group(members: Members, facts: SeenTick) -> str:
    pair, gpus = members
    who, several = _named(gpus, facts.gpus), len(gpus) > 1
    text = group_text(pair, gpus)
    if gpus[0].sound and pair is None:
        return f"{who} {'are' if several else 'is'} {text}"
    return f"{who} is {text}" if len(facts.gpus) == 1 and pair is not None else f"{who} {text}"


def _named(gpus: Sequence[Judged], all_of: Sequence[Judged]) -> str:
    """Return a string such as `GPUs 1-3 and 5` or, for all GPUs, their number, such as `8 GPUs`."""
    if len(gpus) == len(all_of):
        return f"{len(gpus)} GPUs" if len(gpus) != 1 else "the GPU"
    return gpus_named(gpu.number for gpu in gpus)


def _alert(state: State, facts: SeenTick, gpus: Sequence[Judged]) -> AlertStatus | None:
    """Return the alert of a finding about this state of the GPUs. If there is no finding, return an
    inactive alert whose text contains the time shares at which it fires."""
    if state not in ALERTS:
        return None
    name, severity = ALERTS[state]
    devices = {f"gpu{gpu.number}" for gpu in gpus}
    for one in facts.findings:
        if one.alert and one.alert.name == name and devices.intersection(one.devices):
            return one.alert
    limits = facts.source.thresholds
    often = (limits.starved_hours_share, limits.starved_hours)
    shares = {
        State.STARVED: ((limits.starved_share, limits.starved_window), often),
        State.COMMUNICATING: ((limits.exposed_share, limits.starved_window),),
        State.THROTTLED: ((limits.throttled_share, limits.throttled_window),),
        State.HELD: ((limits.held_share, limits.held_window),),
    }
    texts = (f"{percent(part)} of {duration(seconds(t))}" for part, t in shares.get(state, ()))
    limit = " or ".join(texts)
    return words.alert_status(
        name, severity, AlertState.OFF, f"fires from {limit}" if limit else ""
    )
