"""Shares of time: what small batches lose, and a duty cycle that is known."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from agent.diagnosis.accounting import STATE_SECONDS
from agent.diagnosis.thresholds import Thresholds
from agent.hardware.device import NvmlDevice
from agent.polling.reads import ReadOutput
from agent.sources import activity
from agent.sources.activity import ActivityFromBuffer
from tests.hardware.bench import Figure, Load, Watcher, running, slope
from tests.hardware.judging import Span
from tests.hardware.load_runners import runner
from tests.hardware.traffic import device_of
from tests.hardware.trials import HOST_THREAD, Trial
from tests.hardware.verdict_figures import ROWS, figure, within
from tests.hardware.verdicts import Recording, play, prepare_next

BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048)
WARM, WATCHED = 3.0, 9.0
"""Seconds of the steady phase that are left out, and those that count."""

POINT = 0.01
PAPER = {16: 3_000, 64: 8_400, 1024: 26_000}
"""Images a second on one V100 of a DGX-1, as the text of the deep learning paper states them (64:
2.8 times the rate at 16). Its utilisation by batch is drawn in its figure 1, and not stated."""


class Batch(NamedTuple):
    """One batch size: images a second, mean activity and SM activity, and the share of time that
    was called starved."""

    size: int
    images: float
    active: float
    sm: float
    starved: float

    @property
    def lost(self) -> float:
        """Share of time lost: what the paper's utilisation leaves. The verdicts count less of it
        near the threshold of activity, above which a GPU is called busy."""
        return 1.0 - self.active

    def __str__(self) -> str:
        paper = f"{PAPER[self.size]:,}" if self.size in PAPER else "-"
        shares = f"{self.active:9.3f}  {self.sm:6.3f}  {self.lost:6.3f}  {self.starved:14.3f}"
        return f"{self.size:6d}  {self.images:9,.0f}  {paper:>14}  {shares}"


def littlecnn(sizes: Sequence[str] = ()) -> Iterator[Figure]:
    """The paper's finding in seconds: the share of time lost falls as batches grow."""
    on = runner()
    trials = [_trial(int(size)) for size in sizes or BATCHES]
    rows = []
    print(
        " batch   images/s  paper (1 V100)   activity      SM    lost  called starved", flush=True
    )
    try:
        for place, trial in enumerate(trials):
            found = play(trial, on, partial(prepare_next, on, trials[place + 1 :]))
            rows.append(_batch(int(trial.words[1]), found))
            print(rows[-1], flush=True)
    finally:
        on.clear()
    yield from _falls([row for row in rows if row.size <= 1024])
    lost = {row.size: row.lost for row in rows}
    if {1024, 2048} <= lost.keys():
        most = 5 * POINT
        yield Figure("lost at 2048 less at 1024", lost[2048] - lost[1024], -most, most, "")
    for row in rows:
        if row.active < Thresholds().busy - 5 * POINT:  # nearer, some ticks are rightly busy
            name, most = f"called starved at {row.size} less lost", 2 * POINT
            yield Figure(name, row.starved - row.lost, -most, most, "")


def _trial(size: int) -> Trial:
    return Trial(
        f"littlecnn-{size}",
        HOST_THREAD,
        words=("littlecnn", str(size)),
        seconds=WARM + WATCHED,
        scenario="starved-host-thread",  # to try this out: its share is the same for all batches
    )


def _falls(rows: Sequence[Batch]) -> Iterator[Figure]:
    for one, next_ in pairwise(rows):
        name = f"lost at {next_.size} less at {one.size}"
        yield Figure(name, next_.lost - one.lost, -1.0, 2 * POINT, "")


def _batch(size: int, found: Recording) -> Batch:
    span = found.span._replace(since=found.span.onset + WARM)
    mean = {row.title: figure(found.with_gpm, row, "0", span) for row in ROWS}
    active, sm = mean["activity"], mean["SM"]
    assert active is not None
    starved = share_starved(found.with_gpm, "0", span)
    return Batch(size, found.images or 0.0, active, float("nan") if sm is None else sm, starved)


def share_starved(watcher: Watcher, gpu: str, span: Span) -> float:
    """Starved seconds over observed seconds, as the agent's counters grew."""
    starved = observed = 0.0
    for (name, labels), points in watcher.series.items():
        if name == STATE_SECONDS.name and labels[0] == gpu:
            kept = within(points, span)
            grown = kept[-1].value - kept[0].value
            observed += grown
            starved += grown * (labels[2] == "starved")
    return starved / observed


def duty(seconds: float = 40.0) -> Iterator[Figure]:
    """Matrix products for 0.3 s, then none for 0.7 s: active seconds against the load's own."""
    watcher = Watcher()
    watcher.ticks(2.5)
    buffer = DriverBuffer(device_of(watcher, "0"), watcher)
    with running("duty", seconds + 40) as load:
        watcher.ticks(3)
        buffer.take()
        first, start = buffer.active, time.monotonic()
        while time.monotonic() < start + seconds:
            watcher.ticks(4.0)  # the driver keeps 14 s of samples
            buffer.take()
        end = time.monotonic()
        sampled = (buffer.active - first) / (end - start)
        true = _share_busy(load, start, end)
    points = watcher.points(activity.ACTIVE_SECONDS, "0")
    mine = slope([point for point in points if start <= point.at <= end])
    note = f"grows {mine:.4f} a second, the load was busy {true:.4f}"
    yield Figure("active seconds a second less the truth", mine - true, -0.02, 0.02, "", note)
    note = f"{sampled:.4f} by the driver's samples"
    yield Figure("the same without GPM", sampled - true, -0.05, 0.05, "", note)


class DriverBuffer:
    """What the agent would count of a GPU without GPM."""

    def __init__(self, device: NvmlDevice, watcher: Watcher) -> None:
        self._source = ActivityFromBuffer(device)
        self._watcher = watcher
        self._labels = device.labels
        self.active = 0.0  # s

    def take(self) -> None:
        """Count the samples since the last read."""
        out = ReadOutput(self._watcher.clock.monotonic())
        out.labels = self._labels
        self._source.read(out)
        counted = {metric.name: value for metric, _, value in out.samples}
        self.active = counted[activity.ACTIVE_SECONDS.name]


def _share_busy(load: Load, start: float, end: float) -> float:
    """Whole cycles of the load within the time: busy seconds over all seconds."""
    lines = [line for line in list(load.lines) if start <= line["at"] <= end]
    cycles = lines[-1]["at"] - lines[0]["at"]
    return sum(line["busy"] for line in lines[1:]) / cycles
