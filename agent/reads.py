"""Reads: the unit that is scheduled, timed, and allowed to fail alone."""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from agent import beats
from agent.clock import Clock
from agent.model import FINAL, Absence, Absent, Metric, Reading, ReadKey, Reason, Sample

T = TypeVar("T")

SOONEST = 0.1
"""Share of the beat that lies between two runs at least."""

PERMANENT = frozenset({Reason.UNSUPPORTED, Reason.DRIVER, Reason.MIG, Reason.MISSING})
"""Reasons that hold until the next probe: a row refused so is not asked again before."""


@dataclass(slots=True)
class Out:
    """Collects what one read yields; `labels` (often GPU and UUID) come first on every sample."""

    at: float
    labels: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    pending: bool = False  # nothing to say yet: run again at the next tick

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        self.samples.append(Sample(metric, self.labels + labels, float(value)))

    def absent(self, metric: Metric, absent: Absent, *labels: str) -> None:
        self.absences.append(Absence(metric, self.labels + labels, absent.reason, str(absent)))


@dataclass(slots=True, eq=False)
class Read:
    """One scheduled read of one source, of one device where it has any.

    `metrics` are what it yields when all goes well; `every` gives its beat (s) anew each time;
    a `prompt` read also runs at once when the device wakes.
    """

    key: ReadKey
    metrics: tuple[Metric, ...]
    run: Callable[[Out], None]
    every: Callable[[], float]
    labels: tuple[str, ...] = ()
    prompt: bool = False
    stagger: float = 0.0  # share of the beat that sets this device's place in it: they take turns
    again: Callable[[], None] = lambda: None  # ask once more what was refused for good
    varies: bool = False  # the beat may shorten between two runs
    due: float = 0.0
    at: float = 0.0  # when it last ran
    runs: int = 0


def is_due(read: Read, now: float) -> bool:
    """Whether its time has come; a beat that has shortened since the last run counts at once."""
    return read.due <= now or (read.varies and read.at + read.every() <= now)


def fixed(seconds: float) -> Callable[[], float]:
    """A beat that does not change."""
    return lambda: seconds


class Row(NamedTuple, Generic[T]):
    """One metric joined to the function that reads it from a device."""

    metric: Metric
    read: Callable[[T], float]
    labels: tuple[str, ...] = ()


class Rows(Generic[T]):
    """A table of one-value reads of one device; what it refuses for good is asked once a probe."""

    def __init__(self, device: T, rows: Iterable[Row[T]]) -> None:
        self._device = device
        self._asked = list(rows)
        self._refused: list[tuple[Row[T], Absent]] = []

    def read(self, out: Out) -> None:
        """Read every row; an absent value costs only itself, a lost GPU costs the rest."""
        for row in tuple(self._asked):
            try:
                out.add(row.metric, row.read(self._device), *row.labels)
            except Absent as absent:
                self._note(row, absent, out)
        for row, refusal in self._refused:
            out.absent(row.metric, refusal, *row.labels)

    def ask_again(self) -> None:
        """Ask all rows at the next read, also those that were refused for good."""
        self._asked += [row for row, _ in self._refused]
        self._refused.clear()

    def _note(self, row: Row[T], absent: Absent, out: Out) -> None:
        if absent.reason in FINAL:
            raise absent
        if absent.reason in PERMANENT:
            self._asked.remove(row)
            self._refused.append((row, absent.kept()))
        else:
            out.absent(row.metric, absent, *row.labels)


@dataclass(slots=True)
class Price:
    """What a source has cost: seconds of wall time and of its thread's CPU time."""

    wall: float = 0.0
    cpu: float = 0.0


@dataclass(slots=True)
class Ledger:
    """The price of every source, kept by the thread that pays it."""

    prices: dict[str, Price] = field(default_factory=dict)

    def of(self, source: str) -> Price:
        return self.prices.setdefault(source, Price())


def everything_absent(read: Read, absent: Absent, at: float, failure: str = "") -> Reading:
    """A reading in which all that `read` yields is absent for one reason."""
    absences = tuple(Absence(m, read.labels, absent.reason, str(absent)) for m in read.metrics)
    return Reading(read.key, at, read.every(), (), absences, failure)


def perform(read: Read, clock: Clock, ledger: Ledger) -> tuple[Reading, Absent | None]:
    """Run one read, timed; whatever it raises costs that read alone. Returns what it raised."""
    at = clock.monotonic()
    out = Out(at, read.labels)
    wall, cpu = clock.meter()
    raised: Absent | None = None
    failure = ""
    try:
        read.run(out)
    except Absent as absent:
        raised = absent
    except Exception as error:  # a bug or a surprise of the hardware must not end the agent
        failure = described(error)
        raised = Absent(Reason.FAILED, failure)
    price = ledger.of(read.key.source)
    wall_after, cpu_after = clock.meter()
    price.wall += wall_after - wall
    price.cpu += cpu_after - cpu
    plan(read, at, pending=out.pending)
    if raised is not None:
        return everything_absent(read, raised, at, failure), raised
    return Reading(read.key, at, read.every(), tuple(out.samples), tuple(out.absences)), None


def is_pending(read: Read, reading: Reading) -> bool:
    """Whether the read asked to run again at once: what it said before still holds."""
    return read.due <= reading.at


def described(error: Exception) -> str:
    """An unexpected error in one line, with the place where it rose."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"


def plan(read: Read, at: float, *, pending: bool) -> None:
    """Set when the read is due again; devices keep their places in the beat.

    The places are counted from the clock's origin: were they counted from the last read, one turn
    that takes long would bring all devices together for good.
    """
    read.at = at
    if pending:
        read.due = at
        return
    read.runs += 1
    every = read.every()
    read.due = at + every
    if read.stagger and every > beats.TICK:
        read.due -= (at + read.stagger * every) % every
        if read.due - at < SOONEST * every:  # it ran a little before its place
            read.due += every
