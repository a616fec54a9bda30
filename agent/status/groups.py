"""Groups of GPUs that show the same state, cause, and reason."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from agent.diagnosis.advice import SUMMARIES, severity
from agent.jobs.job import percent
from agent.model import Cause, Pair, Snapshot, State
from agent.ranges import gpus_named
from agent.status.gpus import Judged, costs, reasons, slowed
from agent.status.jobs import culprit_name
from agent.status.model import GpuGroup, Level
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
        return SUMMARIES[pair]
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
    text = SUMMARIES[pair].replace(" by its ", its)
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
