"""Counters that never lie: no wrap, reset, leap or glitch makes a rate that cannot be."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import GPU_LABELS, Reason, counter
from agent.polling.counter_filters import CounterFilters
from agent.polling.counters import CounterFilter, Integral
from agent.polling.reads import ReadOutput

FASTEST = 100.0


def followed(raws: Iterable[float], fastest: float | None = FASTEST) -> list[float | None]:
    """What a counter filter makes of readings one second apart."""
    counter_filter = CounterFilter(fastest)
    return [counter_filter.read(raw, float(at)) for at, raw in enumerate(raws)]


CASES: dict[str, tuple[list[float], list[float | None]]] = {
    "steady": ([0, 10, 10, 110], [0, 10, 10, 110]),
    "a first reading may be anything": ([1e15, 1e15 + 50], [1e15, 1e15 + 50]),
    "a reset is confirmed, then exported": ([500, 510, 0, 20, 30], [500, 510, None, 20, 30]),
    "a wrap is a reset": ([2**32 - 10, 40, 90], [2**32 - 10, None, 90]),
    "a glitch to 0 is never seen": ([500, 0, 520], [500, None, 520]),
    "a glitch upwards is never seen": ([500, 1e18, 520], [500, None, 520]),
    "a leap that stays is left out": ([500, 9e9, 9e9 + 10, 9e9 + 30], [500, None, 510, 530]),
    "a fall that is no reset is left out": (
        [9e9, 8e9, 8e9 + 5, 8e9 + 9],
        [9e9, None, 9e9 + 5, 9e9 + 9],
    ),
    "a reset right after a glitch": ([500, 1e18, 0, 10], [500, None, None, 10]),
    "two glitches in a row": ([500, 1e18, 3, 540], [500, None, None, 540]),
    "a reset after a leap": ([500, 9e9, 9e9 + 10, 0, 20], [500, None, 510, None, 20]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_counter_filter_gives(case: str) -> None:
    raws, expected = CASES[case]
    assert followed(raws) == expected


def test_without_a_bound_only_falls_are_doubted() -> None:
    assert followed([5, 1e18, 3, 4], fastest=None) == [5, 1e18, None, 4]


def test_a_long_gap_allows_what_may_have_happened_in_it() -> None:
    counter_filter = CounterFilter(FASTEST)
    counter_filter.read(0, 0.0)
    assert counter_filter.read(99_000, 1_000.0) == 99_000


def test_an_odometer_beyond_the_precision_of_floats_makes_no_spike() -> None:
    found = followed([30, 2.0**71, 2.0**71 + 5, 31, 41, 51])
    assert max(value for value in found if value is not None) <= 60


def increase(values: Iterable[float | None]) -> float:
    """What Prometheus' increase() adds up: a fall is a reset, and counts from 0."""
    known = [value for value in values if value is not None]
    return sum(after - before if after >= before else after for before, after in pairwise(known))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 100),  # true growth in this second
        st.booleans(),  # a reset before it
        st.none() | st.integers(0, 2**50),  # a glitch: this reading alone is something else
    ),
    min_size=2,
    max_size=60,
)


@given(st.integers(0, 10**12), STEPS)
def test_no_rate_exceeds_the_fastest_plausible(
    start: int, steps: list[tuple[int, bool, int | None]]
) -> None:
    raws, true = [start], start
    for growth, reset, glitch in steps:
        true = growth if reset else true + growth
        raws.append(true if glitch is None else glitch)
    values = followed(raws)
    for first in range(len(values)):
        for last in range(first + 1, len(values) + 1):
            if values[first] is None or values[last - 1] is None:
                continue
            assert increase(values[first:last]) <= (last - 1 - first) * FASTEST


@given(st.floats(0, 1e12), st.lists(st.floats(0, FASTEST), min_size=2, max_size=40))
def test_an_honest_counter_is_exported_as_it_is(start: float, growth: list[float]) -> None:
    raws = [start]
    for step in growth:
        raws.append(raws[-1] + step)
    assert followed(raws, fastest=2 * FASTEST) == raws


def test_doubt_is_told_with_its_reason_and_series_end_with_their_device() -> None:
    total = counter("dgx_disk_read_bytes_total", "Bytes.", "a file", ("device",))
    counter_filters, out = CounterFilters(), ReadOutput(0.0)
    counter_filters.add(out, total, 10, "sda")
    counter_filters.add(out, total, 0, "sda")
    assert [s.value for s in out.samples] == [10]
    assert [(a.labels, a.reason) for a in out.absences] == [(("sda",), Reason.UNKNOWN)]
    counter_filters.keep(["sdb"])
    counter_filters.add(out, total, 5, "sda")
    assert [s.value for s in out.samples] == [10, 5]


def test_a_series_of_a_gpu_is_known_by_the_labels_of_its_read() -> None:
    total = counter("dgx_gpu_energy_joules_total", "Joules.", "a call", GPU_LABELS)
    counter_filters, out = CounterFilters(), ReadOutput(0.0, ("0", "GPU-0"))
    counter_filters.add(out, total, 10)
    assert out.samples[0].labels == ("0", "GPU-0")


def test_an_integral_is_rate_times_time_from_its_first_reading() -> None:
    integral = Integral()
    assert [integral.add(rate, at) for rate, at in ((9.0, 5.0), (2.0, 6.0), (4.0, 6.5))] == [
        0,
        2,
        4,
    ]


def test_an_integral_invents_nothing_for_a_gap_or_a_clock_that_stands() -> None:
    integral = Integral(longest=3.0)
    integral.add(1.0, 0.0)
    assert integral.add(1.0, 3.0) == 3.0
    assert integral.add(1.0, 6.1) == 3.0
    assert integral.add(1.0, 6.1) == 3.0
    assert integral.add(1.0, 6.0) == 3.0
    assert integral.add(1.0, 7.0) == 4.0


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 100)), max_size=30))
def test_an_integral_never_falls(readings: list[tuple[float, float]]) -> None:
    integral, at, before = Integral(), 0.0, 0.0
    for rate, pause in readings:
        at += pause
        total = integral.add(rate, at)
        assert total >= before
        before = total
