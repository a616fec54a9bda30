"""Counters that never lie: no wrap, reset, leap or glitch makes a rate that cannot be."""

import tomllib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import Absent, Reason
from agent.polling.counters import Confirmation, CounterFilter, Filters, Integral
from agent.polling.reads import ReadOutput
from tests.support.exposition import counter

FASTEST = 100.0


def followed(raws: Iterable[float], fastest: float | None = FASTEST) -> list[float | None]:
    """Return the values that a counter filter makes of readings one second apart."""
    counter_filter = CounterFilter(fastest)
    return [counter_filter.read(raw, float(at)) for at, raw in enumerate(raws)]


WRITTEN = tomllib.loads(Path(__file__).with_name("counters.toml").read_text("utf-8"))
CASES = WRITTEN["followed"]


@pytest.mark.parametrize("case", CASES)
def test_a_counter_filter_gives(case: str) -> None:
    raws, expected = CASES[case]
    assert ["absent" if value is None else value for value in followed(raws)] == expected


@pytest.mark.parametrize(
    ("raws", "expected"),
    [
        ([5, 1e9, 1e9 + 2], [5, None, 1e9 + 2]),  # a leap that the next reading confirms
        ([5, 1e18, 3, 4], [5, None, None, 4]),
        *(([5, 6, odd, 6, 7], [5, 6, None, 6, 7]) for odd in (644_245_923, 4_294_967_295, 1e15)),
    ],
)
def test_a_filter_of_events_gives(raws: list[float], expected: list[float | None]) -> None:
    assert followed(raws, fastest=None) == expected


def test_odd_readings_that_come_again_make_no_counter_fall() -> None:
    values = followed([500, 510, 590, 520, 590, 530, 535, 540])
    known = [value for value in values if value is not None]
    assert known == sorted(known)


def test_a_long_gap_allows_what_may_have_happened_in_it() -> None:
    counter_filter = CounterFilter(FASTEST)
    counter_filter.read(0, 0.0)
    assert counter_filter.read(99_000, 1_000.0) == 99_000


def test_an_odometer_beyond_the_precision_of_floats_makes_no_spike() -> None:
    found = followed([30, 2.0**71, 2.0**71 + 5, 31, 41, 51])
    assert max(value for value in found if value is not None) <= 60


def increase(values: Iterable[float | None]) -> float:
    """Return the sum by the rules of Prometheus' increase(): a fall is a reset, and counts from
    0."""
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


SECONDS = counter("dgx_gpu_active_seconds_total", "Seconds.", "a call")
TOTAL = counter("dgx_disk_read_bytes_total", "Bytes.", "a file", ("device",), fastest=FASTEST)


def read_once(filters: Filters, at: float, value: float | Absent | None) -> ReadOutput:
    """One run of a read that yields this value of a disk, or does not mention it (None)."""
    out = ReadOutput(at, filters=filters)
    if value is not None:
        out.add(TOTAL, value, "sda")
    filters.end_run()
    return out


def test_doubt_has_a_reason_and_series_end_with_their_device() -> None:
    filters = Filters()
    read_once(filters, 0.0, 10)
    fell = read_once(filters, 1.0, 0)
    assert [(a.labels, a.reason) for a in fell.absences] == [(("sda",), Reason.UNKNOWN)]
    read_once(filters, 2.0, None)
    assert [s.value for s in read_once(filters, 3.0, 5).samples] == [5]


def test_a_leap_is_implausible_and_an_absence_forgets_nothing() -> None:
    filters = Filters()
    read_once(filters, 0.0, 10)
    read_once(filters, 1.0, Absent(Reason.FAILED, "once"))
    leapt = read_once(filters, 2.0, 1e9)
    assert [a.reason for a in leapt.absences] == [Reason.IMPLAUSIBLE]
    assert "leapt from 10 to 1e+09" in leapt.absences[0].detail


def test_an_integral_is_rate_times_time_from_its_first_reading() -> None:
    integral = Integral(SECONDS)
    assert [integral.add(rate, at) for rate, at in ((9.0, 5.0), (2.0, 6.0), (4.0, 6.5))] == [
        0,
        2,
        4,
    ]


def test_an_integral_invents_nothing_for_a_gap_or_a_clock_that_stands() -> None:
    integral = Integral(SECONDS, longest=3.0)
    integral.add(1.0, 0.0)
    assert integral.add(1.0, 3.0) == 3.0
    assert integral.add(1.0, 6.1) == 3.0
    assert integral.add(1.0, 6.1) == 3.0
    assert integral.add(1.0, 6.0) == 3.0
    assert integral.add(1.0, 7.0) == 4.0


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf"), 1e30])
def test_an_integral_takes_no_rate_that_cannot_be(rate: float) -> None:
    integral = Integral(TOTAL)
    integral.add(50.0, 0.0)
    with pytest.raises(Absent):
        integral.add(rate, 1.0)
    assert integral.add(50.0, 2.0) == 100.0


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 100)), max_size=30))
def test_an_integral_never_falls(readings: list[tuple[float, float]]) -> None:
    integral, at, before = Integral(SECONDS), 0.0, 0.0
    for rate, pause in readings:
        at += pause
        total = integral.add(rate, at)
        assert total >= before
        before = total


CONFIRMED = WRITTEN["confirmed"]


@pytest.mark.parametrize("case", CONFIRMED)
def test_one_odd_reading_has_no_effect(case: str) -> None:
    step, counts, raws, expected = CONFIRMED[case]
    confirmation = Confirmation(step, counts)
    assert [confirmation.read(raw) for raw in raws] == expected


def test_a_doubt_is_decided_at_once_but_not_at_each_reading() -> None:
    confirmation = Confirmation(0, counts=True)
    doubts = []
    for raw in (5, 6, 7, 8, 9, 9):
        confirmation.read(raw)
        doubts.append(confirmation.doubtful)
    assert doubts == [False, True, False, True, False, False]
