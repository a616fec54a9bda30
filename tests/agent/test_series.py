"""The store of recent samples: its promises one by one, and all of them against a naive model."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import Absence, Labels, Metric, Reading, ReadKey, Reason, Sample, Snapshot
from agent.series import KEPT, WINDOW_SECONDS, Point, SampleStore
from tests.support.exposition import counter

POWER = Metric("dgx_power_watts", "Power.", "x", ("gpu", "uuid"))
BYTES = counter("dgx_moved_bytes_total", "Bytes.", "x", ("gpu", "uuid"))
INFO = Metric("dgx_link_info", "Info.", "x", ("gpu", "remote"))
A, B = ("0", "GPU-a"), ("1", "GPU-b")


def reading(
    at: float, *samples: tuple[Metric, Labels, float], key: str = "a", every: float = 1.0
) -> Reading:
    shown = tuple(Sample(metric, labels, value) for metric, labels, value in samples)
    return Reading(ReadKey("source", "part", key), at, every, shown)


def refused(at: float, metric: Metric, labels: Labels, key: str = "a") -> Reading:
    absence = Absence(metric, labels, Reason.DENIED, "not you")
    return Reading(ReadKey("source", "part", key), at, 1.0, (), (absence,))


def store(*readings: Reading) -> SampleStore:
    """One reading a turn, taken in when it was read."""
    found = SampleStore()
    for one in readings:
        found.take(one.at, [one])
    return found


def test_what_is_reported_absent_is_not_looked_up_in_the_past() -> None:
    samples = store(reading(1.0, (POWER, A, 5.0)), refused(2.0, POWER, A))
    assert samples.value(POWER, *A) is None
    absence = samples.absence(POWER, *A)
    assert absence is not None
    assert (absence.reason, absence.detail) == (Reason.DENIED, "not you")
    assert samples.absence(POWER, *B) is None
    samples.take(5.1, ())
    assert samples.absence(POWER, *A) is None


def test_without_time_between_two_readings_there_is_no_rate() -> None:
    stood = store(reading(1.0, (BYTES, A, 5.0)), reading(1.0, (BYTES, A, 9.0)))
    assert stood.rate(BYTES, *A) is None


def test_labels_find_and_name() -> None:
    samples = SampleStore()
    samples.take(
        2.0, [reading(2.0, (INFO, ("0", "gpu"), 1)), reading(1.0, (INFO, ("1", "npu"), 1), key="b")]
    )
    assert samples.where(INFO, remote="npu") == {("1", "npu"): 1.0}
    assert samples.labelled(INFO) == [{"gpu": "1", "remote": "npu"}, {"gpu": "0", "remote": "gpu"}]


def test_fresh_is_what_this_tick_brought_in_order() -> None:
    samples = store(reading(1.0, (BYTES, A, 5.0)))
    samples.take(3.0, [reading(2.0, (BYTES, A, 6.0)), reading(3.0, (BYTES, A, 8.0))])
    assert [(p.at, p.value) for _, p in samples.fresh(BYTES)] == [(2.0, 6.0), (3.0, 8.0)]
    samples.take(3.0, ())
    assert list(samples.fresh(BYTES)) == [], "also where the clock stands"


def test_a_store_of_one_snapshot_knows_what_it_holds() -> None:
    one = reading(1.0, (POWER, A, 5.0))
    snapshot = Snapshot(1, 1.0, 0.0, {one.key: one})
    assert SampleStore.of(snapshot).value(POWER, *A) == 5.0
    assert SampleStore.of(snapshot, now=9.0).value(POWER, *A) is None


def test_what_is_gone_leaves_nothing_behind() -> None:
    samples = SampleStore()
    for number in range(1000):
        at = float(number)
        key = f"{number}"
        samples.take(at, [reading(at, (POWER, (key, key), 1.0), key=key)])
        samples.take(at, (), [ReadKey("source", "part", key)])
    assert not samples._reads
    assert not any(samples._series.values())
    assert not any(samples._reporters.values())
    for number in range(1000):
        samples.take(float(number), [reading(float(number), (POWER, A, 1.0))])
    (kept,) = samples._reads.values()
    assert len(kept) <= KEPT + 2


METRICS, KEYS = (POWER, BYTES), ("a", "b", "c")
SERIES = [(metric, labels) for metric in METRICS for labels in (A, B)]


@dataclass
class Naive:
    """All readings ever, looked through from the start each time."""

    now: float = 0.0
    turn: int = 0
    taken: dict[str, list[tuple[int, Reading]]] = field(default_factory=dict)

    def take(self, now: float, fresh: list[Reading], gone: list[str]) -> None:
        self.now, self.turn = now, self.turn + 1
        for key in gone:
            self.taken.pop(key, None)
        for one in fresh:
            self.taken.setdefault(one.key.device, []).append((self.turn, one))

    def kept(self, key: str) -> list[Reading]:
        """The newest first: those of the last seconds, and one before them; two at least."""
        found = [one for _, one in self.taken.get(key, [])][::-1]
        within = sum(one.at >= found[0].at - KEPT for one in found) if found else 0
        return found[: max(2, within + 1)]

    def holder(self, metric: Metric, labels: Labels) -> str | None:
        holders = [
            (self.kept(key)[0].at, key)
            for key in self.taken
            if self.now <= self.kept(key)[0].expires
            and shown(self.kept(key)[0], metric, labels) is not None
        ]
        return max(holders)[1] if holders else None

    def points(self, metric: Metric, labels: Labels) -> list[Point]:
        key = self.holder(metric, labels)
        return [
            Point(one.at, value, one.expires)
            for one in (self.kept(key) if key else [])
            if (value := shown(one, metric, labels)) is not None
        ]


def shown(one: Reading, metric: Metric, labels: Labels) -> float | None:
    found = [s.value for s in one.samples if s.metric is metric and s.labels == labels]
    return found[0] if found else None


Tick = tuple[float, dict[str, tuple[float, dict[int, float], set[int]]], list[str]]


@st.composite
def ticks(draw: st.DrawFn) -> list[Tick]:
    """Steps of time; what each read reports and refuses, if it is read; reads that are dropped."""
    read = st.tuples(
        st.sampled_from([0.5, 1.0, 5.0]),
        st.dictionaries(st.sampled_from(range(len(SERIES))), st.integers(0, 3).map(float)),
        st.sets(st.sampled_from(range(len(SERIES))), max_size=2),
    )
    tick = st.tuples(
        st.sampled_from([1.0, 2.0, 4.0, 20.0]),
        st.dictionaries(st.sampled_from(KEYS), read),
        st.lists(st.sampled_from(KEYS), unique=True, max_size=1),
    )
    return draw(st.lists(tick, min_size=1, max_size=30))


def played(run: list[Tick]) -> Iterator[tuple[SampleStore, Naive]]:
    samples, naive, now = SampleStore(), Naive(), 0.0
    for step, reads, gone in run:
        now += step
        fresh = []
        for key, (every, values, absent) in sorted(reads.items()):
            at = now - KEYS.index(key) / 10
            found = tuple(Sample(*SERIES[n], value) for n, value in values.items())
            denied = sorted(absent - values.keys())
            absences = tuple(Absence(*SERIES[n], Reason.DENIED, "") for n in denied)
            fresh.append(Reading(ReadKey("s", "p", key), at, every, found, absences))
        samples.take(now, fresh, [ReadKey("s", "p", key) for key in gone])
        naive.take(now, fresh, gone)
        yield samples, naive


@given(ticks())
def test_the_store_answers_as_a_naive_one(run: list[Tick]) -> None:
    for samples, naive in played(run):
        for metric, labels in SERIES:
            points = naive.points(metric, labels)
            assert samples.point(metric, *labels) == (points[0] if points else None)
            assert samples.value(metric, *labels) == (points[0].value if points else None)
            for seconds in (1.0, WINDOW_SECONDS, KEPT):
                recent = [p.value for p in points if p.at > naive.now - seconds]
                recent = recent or [p.value for p in points[:1]]
                assert samples.recent(metric, *labels, seconds=seconds) == recent
                mean = sum(recent) / len(recent) if recent else None
                assert samples.mean(metric, *labels, seconds=seconds) == pytest.approx(mean)
                assert samples.rate(metric, *labels, seconds=seconds) == pytest.approx(
                    rate(points, seconds)
                )
        for metric in METRICS:
            everything = {
                labels: points[0].value
                for other, labels in SERIES
                if other is metric and (points := naive.points(metric, labels))
            }
            assert samples.all(metric) == everything


def rate(points: list[Point], seconds: float) -> float | None:
    if len(points) < 2:
        return None
    within = [p for p in points[1:] if points[0].at - p.at <= seconds] or points[1:2]
    grown = points[0].value - within[-1].value
    return grown / (points[0].at - within[-1].at) if grown >= 0 else None
