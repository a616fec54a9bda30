"""Verdicts against what is known of a load: which pairs are right, and how many ticks were."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent.diagnosis.accounting import STATE
from agent.diagnosis.thresholds import Thresholds
from agent.model import CAUSES, Cause, Pair, Snapshot, State
from agent.series import WINDOW, SampleStore
from agent.sources import activity

BUSY_FROM = Thresholds().busy
"""Activity from which the paper rules out an input bottleneck."""

BAND = 0.02
"""So near to it either verdict is right: the activity of a second is not known any better."""

NO_VERDICT = "none"


def pair(text: str) -> Pair:
    """`starved/disk`."""
    state, _, cause = text.partition("/")
    return State(state), Cause(cause or "none")


class Tick(NamedTuple):
    """One GPU at one tick (clock's s): its verdict, and how active it was."""

    at: float
    pair: Pair | None
    activity: float | None

    @property
    def text(self) -> str:
        return "/".join(self.pair) if self.pair else NO_VERDICT


def ticks(snapshots: Iterable[Snapshot], gpu: str) -> list[Tick]:
    """What was said of one GPU, by its index, tick by tick."""
    found = [_tick(SampleStore.of(snapshot), snapshot.at, gpu) for snapshot in snapshots]
    return [tick._replace(activity=_mean(found[: place + 1])) for place, tick in enumerate(found)]


def _mean(told: Sequence[Tick]) -> float | None:
    """The mean activity of the last ticks, as many as the diagnosis weighs."""
    known = [t.activity for t in told[-round(WINDOW) :] if t.activity is not None]
    return sum(known) / len(known) if known else None


def _tick(samples: SampleStore, at: float, gpu: str) -> Tick:
    found = [key[2:] for key, value in samples.where(STATE, gpu=gpu).items() if value]
    active = next(iter(samples.where(activity.ACTIVITY, gpu=gpu).values()), None)
    assert len(found) <= 1, f"{len(found)} verdicts on GPU {gpu} at one tick"
    return Tick(at, (State(found[0][0]), Cause(found[0][1])) if found else None, active)


@dataclass(frozen=True, slots=True)
class Expected:
    """The pairs that are right for a GPU; `when_busy` in their place where its activity rules out a
    bottleneck before it. Written as `state/cause`."""

    pairs: tuple[str, ...]
    when_busy: tuple[str, ...] = ()

    def at(self, active: float | None) -> frozenset[Pair]:
        """What is right at this activity."""
        is_busy = self.when_busy and active is not None and active >= BUSY_FROM - BAND
        input_bound = not self.when_busy or active is None or active < BUSY_FROM + BAND
        right = (*(self.pairs if input_bound else ()), *(self.when_busy if is_busy else ()))
        return frozenset(map(pair, right))

    @property
    def healthy(self) -> bool:
        """Whether `starved` would be a false alarm at any activity."""
        return all(pair(text)[0] is not State.STARVED for text in (*self.pairs, *self.when_busy))

    def to_json(self) -> dict[str, Any]:
        return {"pairs": list(self.pairs), "fed": list(self.when_busy)}


@dataclass(slots=True)
class Score:
    """How many of the judged ticks were right; first: seconds until the first right one."""

    ticks: int = 0
    right_state: int = 0
    caused: int = 0  # of these, how many have a state with several causes
    right_cause: int = 0
    starved: int = 0
    first: float | None = None

    @property
    def state(self) -> float:
        return self.right_state / self.ticks if self.ticks else 0.0

    @property
    def cause(self) -> float | None:
        """None where no cause had to be named."""
        return self.right_cause / self.caused if self.caused else None

    def add(self, tick: Tick, right: frozenset[Pair]) -> None:
        """Count one tick."""
        self.ticks += 1
        self.starved += tick.pair is not None and tick.pair[0] is State.STARVED
        if tick.pair is None or tick.pair[0] not in {state for state, _ in right}:
            return
        self.right_state += 1
        if len(CAUSES[tick.pair[0]]) > 1:
            self.caused += 1
            self.right_cause += tick.pair in right


class Span(NamedTuple):
    """The part of a recording that counts (clock's s): when the load was steady, or what it is
    judged for began to hold; from when on and until when ticks are judged."""

    onset: float
    since: float
    until: float


def score(
    told: Sequence[Tick], expected: Expected, span: Span, truth: Sequence[Tick] | None = None
) -> Score:
    """Hold verdicts against what is expected. `truth` are the same ticks as the best eyes saw
    them: with poorer eyes the GPU's activity may be told wrong, and that is no excuse."""
    found = Score()
    for tick, true in zip(told, told if truth is None else truth, strict=True):
        right = expected.at(true.activity)
        if found.first is None and tick.at >= span.onset and tick.pair in right:
            found.first = tick.at - span.onset
        if span.since <= tick.at <= span.until:
            found.add(tick, right)
    return found


class Matrix:
    """Rows of loads, columns of the verdicts seen, in ticks."""

    def __init__(self) -> None:
        self._rows: dict[str, Counter[str]] = {}

    def add(self, row: str, told: Iterable[Tick], span: Span) -> None:
        """Count a row's ticks."""
        judged = (tick.text for tick in told if span.since <= tick.at <= span.until)
        self._rows.setdefault(row, Counter()).update(judged)

    def lines(self) -> Iterator[str]:
        """The matrix as text."""
        columns = sorted({text for counts in self._rows.values() for text in counts})
        width = max(map(len, self._rows), default=0)
        yield " " * width + "  " + "  ".join(columns)
        for row, counts in self._rows.items():
            cells = (f"{counts[text] or '.':>{len(text)}}" for text in columns)
            yield f"{row:<{width}}  " + "  ".join(cells)


def expected_of(content: Mapping[str, Any]) -> Expected:
    """From JSON."""
    return Expected(tuple(content["pairs"]), tuple(content["fed"]))
