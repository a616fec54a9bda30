"""Throughput of the tensor cores: the product, its integral, and its error where FLOP are known."""

from functools import cache

import pytest

from agent.hardware.gpm import NO_GPM, GpmId
from agent.model import Reason
from agent.sources import activity, clocks
from agent.sources.activity import TENSOR_SECONDS, TENSOR_THROUGHPUT
from agent.sources.clocks import CLOCK_LIMIT as LIMIT
from tests.hardware.share_replay import played
from tests.support.fake_gpus import NOT_SUPPORTED, GpuBench
from tests.support.machines import simulated
from tests.support.repository import TAPES

SMS, HERTZ = 132, 1.98e9
"""Of H100 SXM and H200, their highest clock."""

BF16, FP8 = 4096 * SMS * HERTZ, 8192 * SMS * HERTZ
"""FLOP a second at that clock; the data sheet's 989 TFLOP/s in bf16 are at 1.83 GHz."""

GPT_TOKEN = 6 * 124e6 + 12 * 12 * 768 * 1024
"""FLOP of GPT-2's smallest for a token of 1024, forward and backward (arXiv 2204.02311, app. B)."""

KNOWN: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("one-h200-limit", "tight-bf16"): (24 * 4 * 16384 * 5120 * 13824, BF16, 1.05, 1.12),
    ("one-h200-limit", "tight-fp8"): (16 * 2 * 16384**3, FP8, 1.05, 1.12),
    ("one-h200-steps", "step-language"): (32 * 1024 * GPT_TOKEN, BF16, 1.0, 1.06),
    ("two-h100", "gpt"): (32 * 1024 * GPT_TOKEN, BF16, 1.0, 1.06),
    ("two-h100", "resnet"): (256 * 3 * 2 * 4.09e9, BF16, 1.1, 1.4),
}
"""By tape and load: FLOP of a step, the peak, and reported over true between these two. The first
two run at the power limit of their board."""


@cache
def reported(tape: str) -> dict[str, tuple[float, float]]:
    """By load: the mean throughput over its steady phase, of its first GPU, and its step (s)."""
    found: dict[str, tuple[float, float]] = {}
    for span, watcher in played(TAPES / "shares" / tape, {load for _, load in KNOWN}):
        rate = watcher.rate(TENSOR_SECONDS, str(span.gpu), span.since, span.until)
        found.setdefault(span.load, (rate, span.step or 0.0))
    return found


@pytest.mark.parametrize(("tape", "load"), KNOWN)
def test_it_bounds_known_flop_from_above(tape: str, load: str) -> None:
    flop, peak, least, most = KNOWN[tape, load]
    shown, step = reported(tape)[load]
    assert least <= shown * step * peak / flop <= most


def test_it_is_tensor_activity_at_the_clock_and_its_integral_misses_nothing() -> None:
    bench = simulated("dgx-h100:throttled", gpus=1)
    (gpu,) = bench.run(10).samples.all(activity.TENSOR_ACTIVE)
    begun, ratios = bench.samples.value(TENSOR_SECONDS, *gpu), []
    for _ in range(20):
        bench.run(1)
        samples = bench.samples
        ratios.append(samples.value(TENSOR_THROUGHPUT, *gpu) or 0.0)
        clock = samples.value(clocks.CLOCK, *gpu, "sm"), samples.value(LIMIT, *gpu, "sm")
        assert clock[0]
        assert clock[1]
        assert 0.5 < clock[0] / clock[1] < 0.7
        tensor = samples.value(activity.TENSOR_ACTIVE, *gpu) or 0.0
        assert ratios[-1] == pytest.approx(tensor * clock[0] / clock[1], rel=0.02)
    grown = (bench.samples.value(TENSOR_SECONDS, *gpu) or 0.0) - (begun or 0.0)
    assert grown == pytest.approx(sum(ratios), rel=0.01)
    assert grown > 2


def test_a_gpu_without_gpm_has_none_and_says_why() -> None:
    latest = simulated("dgx-a100:training", gpus=1).run(5).latest
    absences = [a for reading in latest.readings.values() for a in reading.absences]
    for metric in (TENSOR_THROUGHPUT, TENSOR_SECONDS):
        found = {(a.reason, a.detail) for a in absences if a.metric == metric}
        assert found == {(Reason.UNSUPPORTED, str(NO_GPM))}


@pytest.mark.parametrize(
    ("call", "answer", "reason"),
    [
        ("ClockInfo", None, Reason.UNSUPPORTED),
        ("ClockInfo", 82505, Reason.IMPLAUSIBLE),
        ("MaxClockInfo", None, Reason.UNSUPPORTED),
        ("MaxClockInfo", 0, Reason.UNKNOWN),
    ],
)
def test_a_clock_that_cannot_be_leaves_it_absent_with_the_reason(
    call: str, answer: int | None, reason: Reason
) -> None:
    bench, key = GpuBench(gpus=1, gpm=True), ("0", "GPU-0")
    bench.nvml.means[GpmId.TENSOR] = 50.0

    def clock(*_: object) -> int:
        if answer is None:
            raise bench.nvml.NVMLError(NOT_SUPPORTED)
        return answer

    bench.nvml.answers[call] = clock
    bench.run(5)
    assert bench.reasons(TENSOR_THROUGHPUT) == bench.reasons(TENSOR_SECONDS) == {key: reason}
    assert bench.values(activity.TENSOR_ACTIVE)[key] == 0.5
    del bench.nvml.answers[call]
    before = bench.run(5).values(TENSOR_SECONDS)[key]
    assert bench.run(10).values(TENSOR_SECONDS)[key] - before == pytest.approx(10 * 0.5)
