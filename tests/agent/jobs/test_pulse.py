"""The pulse: what is reported of recorded and of made power, when nothing may be reported, and the
autocorrelation by one product, which is the one by the book."""

import gzip
import json
import math
from collections.abc import Iterator
from itertools import accumulate, pairwise, product
from math import sin
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.jobs import pulse as pulses
from agent.jobs.pulse import Pulse, PulseReading, autocorrelation
from agent.model import Reason
from tests.support import power_signals as power
from tests.support.power_signals import Phase, Samples
from tests.support.repository import ROOT


class Trace(NamedTuple):
    """Samples of one GPU, and the true steps: from a time on, so long."""

    samples: Samples
    steps: list[tuple[float, float | None]]

    def step_at(self, time: float) -> float | None:
        """The true step at a time."""
        return [step for since, step in self.steps if since <= time][-1]


def trace(name: str) -> Trace:
    """The recorded power of one GPU under a labelled load. Its file holds the differences of times
    (0.1 ms) and of power (0.1 W), and from when on which step took how long by the load's own clock
    (seconds; null where it has no regular steps, or steps too short for the samples)."""
    text = gzip.decompress((ROOT / "tests/agent/jobs/traces" / f"{name}.json.gz").read_bytes())
    read = json.loads(text)
    times = (tenths / 1e4 for tenths in accumulate(read["tenths_of_ms"]))
    watts = (tenths / 10 for tenths in accumulate(read["deciwatts"]))
    steps = [(float(since), step) for since, step in read["steps"]]
    return Trace(list(zip(times, watts, strict=True)), steps)


class Judged(NamedTuple):
    """Result after one portion of samples."""

    at: float
    reading: PulseReading


def shown(samples: Samples, pulse: Pulse | None = None) -> list[Judged]:
    pulse = pulse or Pulse()
    return [Judged(portion[-1][0], pulse.feed(portion)) for portion in power.feeds(samples)]


def of_load(load: Iterator[Phase], seconds: float, **sensor: float) -> list[Judged]:
    return shown(power.sampled(load, seconds, **sensor))  # type: ignore[arg-type]


def reported_steps(all_reported: list[Judged], since: float = 0.0) -> list[float]:
    found = (one.reading.step_seconds for one in all_reported if one.at >= since)
    return [seconds for seconds in found if seconds is not None]


def errors(recorded: Trace, settled: float = 9.0) -> list[float]:
    """Parts by which steps were reported wrong, except while windows see two speeds."""
    found = []
    for at, reading in shown(recorded.samples):
        true = recorded.step_at(at)
        if reading.step_seconds and true and true == recorded.step_at(max(0.0, at - settled)):
            found.append(abs(reading.step_seconds / true - 1))
    return found


def claimed_seconds(all_reported: list[Judged]) -> float:
    return sum(
        after.at - before.at
        for before, after in pairwise(all_reported)
        if after.reading.step_seconds is not None
    )


# What two H200 recorded


@pytest.mark.parametrize(
    ("name", "reported_times"),
    [
        *(("gpt-0", 10), ("gpt-1", 10), ("gpt-accumulated", 7), ("resnet-256", 10)),
        *(("resnet-512", 10), ("pipeline-0", 8), ("pipeline-1", 8)),
    ],
)
def test_recorded_steps_are_reported(name: str, reported_times: int) -> None:
    found = errors(trace(name))
    assert len(found) >= reported_times
    assert max(found) < 0.005


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("decode", Reason.NOT_ENOUGH),  # irregular, but long steps cannot be ruled out in 29 s
        ("loader-threads", Reason.NOT_ENOUGH),
        ("gpt-short", Reason.TOO_SHORT),
        ("tcp", Reason.TOO_SHORT),
        ("resnet-short", Reason.NOT_ENOUGH),
        ("gpt-below", Reason.TOO_SHORT),
        ("alias", Reason.TOO_SHORT),
        ("spinning", Reason.NOT_ENOUGH),
    ],
)
def test_nothing_is_reported_recorded_loads_without_a_pulse(name: str, reason: Reason) -> None:
    all_reported = shown(trace(name).samples)
    assert reported_steps(all_reported) == []
    assert all_reported[-1].reading.reason is reason
    assert all_reported[-1].reading.confidence == 0.0
    assert all_reported[-1].reading.steps == 0


def test_a_recorded_change_is_seen() -> None:
    """Gradients accumulated 4 times; then the other rank comes 11 % late."""
    after = [one for one in shown(trace("gpt-accumulated").samples) if one.at > 22.0]
    slower = [one for one in after if (one.reading.step_seconds or 0) > 0.255]
    assert slower[0].at < 22.0 + 15
    assert slower[0].at - slower[0].reading.lag == pytest.approx(22.0, abs=5)


# What is known of the load, for it was made


STEPS = 0.2119, 0.35, 0.7, 1.2, 2.2, 5.0, 9.0
ACCUMULATED = (0.3, 2), (0.4, 4), (2.4, 4), (4.0, 4)


@pytest.mark.parametrize(("step", "parts"), [*product(STEPS, [1]), *ACCUMULATED])
def test_steps_of_any_length_and_number_of_parts_are_reported(step: float, parts: int) -> None:
    load = power.steps(step, jitter=0.003) if parts == 1 else power.accumulated(step, parts)
    found = reported_steps(of_load(load, max(30.0, 24 * step)))
    assert found
    assert max(abs(seconds / step - 1) for seconds in found) < (0.01 if parts == 1 else 0.015)


def validating(phases: int, rounds: int) -> Iterator[Phase]:
    validation = [(0.05, power.REST), *[(0.06, 430.0), (0.01, 300.0)] * rounds]
    return power.with_event(power.steps(0.2119), phases, validation)


@pytest.mark.parametrize(
    "load",
    [
        validating(100, 14),
        validating(100, 70),
        power.with_event(power.steps(0.2119), 20, [(0.02, power.REST)]),
    ],
    ids=["validation-of-1-s", "validation-of-5-s", "line-logged"],
)
def test_what_comes_each_so_many_steps_is_no_step(load: Iterator[Phase]) -> None:
    found = reported_steps(of_load(load, 150))
    assert len(found) > 50
    assert max(found) < 0.2119 * 1.06
    assert min(found) > 0.2119 * 0.98


def test_pauses_of_steps_are_no_step() -> None:
    """A quarter of a second every 7 s spoils most windows, and is not taken for the step itself."""
    pauses = power.with_event(power.steps(0.2119), 66, [(0.25, power.REST)])
    assert all(abs(step / 0.2119 - 1) < 0.02 for step in reported_steps(of_load(pauses, 150)))


def test_a_sensor_that_holds_its_values_sees_longer_steps_only() -> None:
    coarse = power.held(power.sampled(power.steps(0.7), 40), 5)
    assert reported_steps(shown(coarse))[-1] == pytest.approx(0.7, rel=0.01)
    fine = shown(power.held(power.sampled(power.steps(0.3), 60), 5))
    assert reported_steps(fine) == []
    assert fine[-1].reading.reason in {Reason.TOO_SHORT, Reason.IRREGULAR}


@pytest.mark.parametrize("step", [0.3, 1.0, 2.2])
def test_a_sensor_that_averages_shows_the_same(step: float) -> None:
    smooth = power.averaged(power.sampled(power.steps(step), 60), 5)
    assert reported_steps(shown(smooth))[-1] == pytest.approx(step, rel=0.01)


@pytest.mark.parametrize("step", [0.03, 0.0353, 0.048, 0.06, 0.077, 0.09])
def test_short_steps_are_never_guessed(step: float) -> None:
    """Of a sensor that rounds off what is shorter than a sample."""
    all_reported = of_load(power.steps(step, waits=0.4), 60, over=0.02)
    assert reported_steps(all_reported) == []


IRREGULAR = {
    "requests": power.requests(),
    "requests-alike": power.requests(scatter=0.001),
    "requests-dense": power.requests(busy=0.5, pause=0.02, scatter=0.1),
    "bursts": power.bursts(1.0),
    "slow-bursts": power.bursts(5.0),
    "wandering": power.wandering(),
    "decoding": power.decoding(),
}


@pytest.mark.parametrize("name", IRREGULAR)
def test_of_irregular_work_next_to_nothing_is_claimed(name: str) -> None:
    """30 s an hour at most."""
    all_reported = of_load(IRREGULAR[name], 20 * 60)
    assert claimed_seconds(all_reported) <= 10
    assert all_reported[-1].reading.reason in {Reason.IRREGULAR, Reason.TOO_SHORT}


# What changes


@pytest.mark.parametrize("times", [1.05, 0.95, 2.0])
def test_another_speed_is_seen_in_a_minute_and_dated(times: float) -> None:
    before = power.until(power.steps(0.3), 61)
    all_reported = of_load(power.then(before, power.steps(0.3 * times, seed=9)), 120)
    new = [
        one
        for one in all_reported
        if one.reading.step_seconds
        and abs(one.reading.step_seconds / (0.3 * times) - 1) < 0.01
        and one.at > 61
    ]
    assert new[0].at - 61 < 20
    assert [one.at for one in all_reported if one.at >= new[0].at] == [one.at for one in new]
    assert new[0].at - new[0].reading.lag == pytest.approx(61, abs=5)


def test_a_drift_is_followed() -> None:
    all_reported = of_load(power.drifting(0.3, 0.33, 200), 220)
    assert all(one.reading.step_seconds for one in all_reported if one.at > 14)
    assert reported_steps(all_reported)[-1] == pytest.approx(0.33, rel=0.005)


def test_a_pulse_ends_when_its_job_does_something_else() -> None:
    load = power.then(power.until(power.steps(0.3), 60), power.requests())
    assert reported_steps(of_load(load, 120), since=78) == []


@pytest.mark.parametrize("step", [0.3, 2.2])
def test_a_job_that_hangs_steps_no_more(step: float) -> None:
    hangs = 25 * step if step > 1 else 40.0
    load = power.then(power.until(power.steps(step), hangs), power.flat(280.0))
    all_reported = of_load(load, hangs + 60, noise=0.002)
    assert reported_steps(all_reported, since=hangs + 45) == []
    then = [one.reading.steps for one in all_reported if one.at > hangs + step + 2]
    assert then[0] == then[-1] > 5


@pytest.mark.parametrize("step", [0.3, 1.6])
def test_steps_are_counted(step: float) -> None:
    all_reported = of_load(power.steps(step, jitter=0.0), 80)
    first, last = next(one for one in all_reported if one.reading.steps), all_reported[-1]
    counted = last.reading.steps - first.reading.steps
    assert counted == pytest.approx((last.at - first.at) / step, rel=0.01)


# What must not matter


def readings(samples: Samples, seconds: float = 1.9) -> PulseReading:
    pulse, reading = Pulse(), None
    for portion in power.feeds(samples, seconds):
        reading = pulse.feed(portion)
    assert reading is not None
    return reading


SOME = power.sampled(power.accumulated(0.4, 4), 25)


@settings(max_examples=8)
@given(st.lists(st.integers(0, len(SOME)), max_size=12))
def test_how_samples_are_portioned_does_not_matter(cuts: list[int]) -> None:
    pulse, reading = Pulse(), None
    for first, last in pairwise([0, *sorted(cuts), len(SOME)]):
        reading = pulse.feed(SOME[max(0, first - 7) : last])  # and some come twice
    assert reading is not None
    assert reading._replace(steps=0.0) == readings(SOME)._replace(steps=0.0)


def alike(one: PulseReading, other: PulseReading) -> bool:
    assert one.step_seconds is not None
    assert other.step_seconds is not None
    return (
        math.isclose(one.step_seconds, other.step_seconds, rel_tol=1e-3)
        and math.isclose(one.confidence, other.confidence, abs_tol=0.01)
        and abs(one.steps - other.steps) <= 1
    )


@settings(max_examples=8)
@given(st.floats(0.01, 1000))
def test_the_unit_of_power_does_not_matter(scale: float) -> None:
    scaled = [(time, watts * scale) for time, watts in SOME]
    assert alike(readings(SOME), readings(scaled))


# What is lost


def test_samples_lost_between_reads_cost_nothing() -> None:
    samples = power.sampled(power.steps(0.3), 60)
    gapped = [sample for sample in samples if sample[0] % 10 < 9.4]
    found = shown(gapped)
    assert len(reported_steps(found)) > 20
    assert found[-1].reading.step_seconds == pytest.approx(0.3, rel=0.01)


def test_after_a_long_gap_all_begins_again() -> None:
    pulse = Pulse()
    samples = power.sampled(power.steps(0.3), 70)
    before = shown([sample for sample in samples if sample[0] < 30], pulse)
    after = shown([sample for sample in samples if sample[0] > 40], pulse)
    assert before[-1].reading.step_seconds is not None
    assert after[0].reading.step_seconds is None
    assert after[0].reading.reason is Reason.NOT_ENOUGH
    assert after[0].reading.steps == before[-1].reading.steps
    assert after[-1].reading.step_seconds == pytest.approx(0.3, rel=0.01)
    assert after[-1].reading.steps > before[-1].reading.steps


@given(st.floats(3, 70), st.floats(0.3, 1), st.floats(0, 0.05), st.floats(-0.6, 0.3), st.integers())
def test_any_course_of_an_autocorrelation_has_a_period_or_none(
    period: float, height: float, decay: float, trend: float, seed: int
) -> None:
    r, random = [1.0], Random(seed)
    for lag in range(1, 128):
        wave = height * math.cos(2 * math.pi * lag / period) * math.exp(-decay * lag)
        r.append(wave + trend * min(1.0, lag / 20) + random.gauss(0, 0.05))
    found = pulses._period(r, 1)
    assert found is None or 0 < found.length < len(r)


def by_the_book(values: list[float], lag: int) -> float:
    early, late = values[: len(values) - lag], values[lag:]
    mean_early, mean_late = sum(early) / len(early), sum(late) / len(late)
    together = sum((a - mean_early) * (b - mean_late) for a, b in zip(early, late, strict=True))
    spread = sum((a - mean_early) ** 2 for a in early) * sum((b - mean_late) ** 2 for b in late)
    return float(together / spread**0.5)


def without_trend(values: list[float]) -> list[float]:
    """Nothing to take off: both halves have the mean 0."""
    half = [*values, 100.0, 100.0, -100.0, -100.0]
    half += [-value for value in half]
    return half + half[::-1]


@given(st.lists(st.floats(-100, 100), min_size=8, max_size=60))
def test_each_coefficient_is_pearsons(some: list[float]) -> None:
    values = without_trend(some)
    lags = len(values) // 2
    found = autocorrelation([value + 500 for value in values], lags)[0]
    assert len(found) == lags
    assert found == pytest.approx([by_the_book(values, lag) for lag in range(lags)], abs=0.02)


def test_a_trend_is_taken_off() -> None:
    wave = [sin(i / 2) for i in range(256)]
    plain = autocorrelation([500 + 30 * value for value in wave], 128)
    climbing = autocorrelation([500 + 30 * value + i for i, value in enumerate(wave)], 128)
    assert climbing[0] == pytest.approx(plain[0], abs=0.05)


def test_what_does_not_vary_enough_correlates_with_nothing() -> None:
    assert autocorrelation([5.0] * 64, 32)[0] == [1.0] + [0.0] * 31
    hardly = [100 + i % 2 for i in range(64)]
    assert autocorrelation(hardly, 32, flat=0.03)[0] == [1.0] + [0.0] * 31
    assert autocorrelation(hardly, 32, flat=0.005)[0][1] == pytest.approx(-1.0, abs=0.01)


def test_the_largest_sums_fit() -> None:
    values = [0.0, 1.0] * 512
    found = autocorrelation(values, 512)[0]
    assert found[1] == pytest.approx(-1.0, abs=1e-6)
    assert found[510] == pytest.approx(1.0, abs=1e-6)
