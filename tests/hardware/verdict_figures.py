"""The figures behind a verdict, printed so that a wrong one can be understood."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from agent.limits.paths import RATIO
from agent.model import Metric, Snapshot
from agent.sources import activity, clocks, cpu, disk, gpu, network, power, pressure
from exporters.words import fact_text
from tests.hardware.bench import Point, Watcher, slope
from tests.hardware.judging import Expected, Span, ticks

Labels = tuple[str, ...]
Matches = Callable[[Labels, str], bool]
WORKLOAD = "dgx_workload_"


def _of_gpu(labels: Labels, index: str) -> bool:
    return labels[0] == index


def _any(_: Labels, __: str) -> bool:
    return True


def _path(path: str, direction: str = "") -> Matches:
    def matches(labels: Labels, index: str) -> bool:
        mine = labels[1] == (f"gpu{index}" if labels[2] else labels[1])
        return labels[0] == path and mine and direction in ("", labels[4])

    return matches


def _first(*words: str) -> Matches:
    return lambda labels, _: labels[: len(words)] == words


class Row(NamedTuple):
    """A figure: the mean of a metric, or of a counter its growth a second; of several series the
    largest."""

    title: str
    metric: Metric
    matches: Matches
    growth: bool = False
    scale: float = 1.0


ROWS = (
    Row("activity", activity.ACTIVITY, _of_gpu),
    Row("SM", activity.SM_ACTIVE, _of_gpu),
    Row("NVML", gpu.UTILIZATION, _of_gpu),
    Row("W", power.POWER, _of_gpu),
    Row("of W", power.POWER_LIMIT, _of_gpu),
    Row("SM MHz", clocks.CLOCK, lambda labels, i: labels[0] == i and labels[2] == "sm", scale=1e-6),
    Row("PCIe in", RATIO, _path("pcie", "receive")),
    Row("PCIe out", RATIO, _path("pcie", "transmit")),
    Row("NVLink", RATIO, _path("nvlink")),
    Row("host CPU", cpu.BUSY, _any),
    Row("cpu pressure", pressure.PRESSURE, _first("cpu", "some"), growth=True),
    Row("io pressure", pressure.PRESSURE, _first("io", "some"), growth=True),
    Row("disk busy", disk.BUSY, _any, growth=True),
    Row("disk GB/s", disk.READ_BYTES, _any, growth=True, scale=1e-9),
    Row("lo GB/s", network.RECEIVED, _first("lo"), growth=True, scale=1e-9),
)


def verdict_figures(watcher: Watcher, index: str, span: Span, expected: Expected) -> Iterator[str]:
    """Lines about one GPU over the judged seconds."""
    found = ((row.title, figure(watcher, row, index, span)) for row in ROWS)
    yield ", ".join(f"{title} {value:.4g}" for title, value in found if value is not None)
    processes = ", ".join(_workload(watcher, index, span))
    yield f"processes: {processes or 'nothing is known of them'}"
    yield from _wrong(watcher, index, span, expected)


def figure(watcher: Watcher, row: Row, index: str, span: Span) -> float | None:
    """One figure; None where nothing was read within the span."""
    values = [
        slope(kept) if row.growth else statistics.fmean(point.value for point in kept)
        for (name, labels), points in watcher.series.items()
        if name == row.metric.name and row.matches(labels, index)
        if len(kept := within(points, span)) > row.growth
    ]
    return max(values) * row.scale if values else None


def within(points: list[Point], span: Span) -> list[Point]:
    """The points of the judged seconds."""
    return [point for point in points if span.since <= point.at <= span.until]


def _workload(watcher: Watcher, index: str, span: Span) -> Iterator[str]:
    for (name, labels), points in sorted(watcher.series.items()):
        if not name.startswith(WORKLOAD) or labels[:1] not in ((), (index,)):
            continue
        kept = within(points, span)
        if len(labels) > 2:
            yield f"{name.removeprefix(WORKLOAD)} {' '.join(labels[2:])}"
        elif kept:
            mean = statistics.fmean(point.value for point in kept)
            yield f"{name.removeprefix(WORKLOAD)} {mean:.3g}"


def _wrong(watcher: Watcher, index: str, span: Span, expected: Expected) -> Iterator[str]:
    """Each wrong verdict: how often, and what the agent said for it the first time; else what it
    said at last."""
    told = ticks(watcher.snapshots, index)
    wrong = Counter[str]()
    for tick, snapshot in zip(told, watcher.snapshots, strict=True):
        if not span.since <= tick.at <= span.until or tick.pair in expected.at(tick.activity):
            continue
        wrong[tick.text] += 1
        if wrong[tick.text] == 1:
            after = tick.at - span.onset
            yield f"wrong at {after:.1f} s: {tick.text}: {_said(snapshot, index)}"
    if wrong:
        yield f"wrong ticks: {dict(wrong)}"
    else:
        yield f"says: {told[-1].text}: {_said(watcher.snapshots[-1], index)}"


def _said(snapshot: Snapshot, index: str) -> str:
    """What the agent said for its verdict, and what it could not see."""
    for key, verdict in snapshot.verdicts.items():
        if key.labels[0] == index:
            return "; ".join(map(fact_text, (*verdict.evidence, *verdict.doubts)))
    return "no evidence"
