"""Counters of a GPU's sources: nothing lost, nothing invented, no spike, and costly reads are rare
while nothing happens."""

from math import inf, nan
from types import SimpleNamespace

import pytest

from agent.hardware.gpm import PCIE_UNIT
from agent.model import ReadKey, Reason
from agent.simulator import fields
from agent.simulator.gpu import SimulatedGpuProcess
from agent.simulator.loads import GpuLoad, GpuWork
from agent.sources import activity, nvlink, pcie, process
from tests.support.fake_gpus import NOT_FOUND, NOT_SUPPORTED, GpuBench
from tests.support.machine_controls import start_process
from tests.support.machines import AgentBench, simulated

ALL_LINKS = 0xFFFFFFFF


def works(bench: GpuBench, duty: float) -> None:
    """Let kernels run for this share of each two seconds."""
    load, rest = GpuLoad(power=0.5, activity=1.0), GpuLoad(power=0.2)
    work = GpuWork(((duty, load), (1.0 - duty, rest)), step=2.0, paced=False)
    bench.machine.gpus[0].take(bench.clock.monotonic(), work)


def test_nvlink_totals_that_fall_back_are_no_spike() -> None:
    bench = GpuBench(gpus=1)
    key = ("0", "GPU-0")
    totals = []
    readings = [1000, 2000, 3000, 2**62, 4000, 10, 20, 30, 2**40, 2**40 + 5, 2**40 + 15]
    for raw in readings:
        bench.nvml.fields[138, ALL_LINKS] = raw
        bench.run()
        totals.append(bench.values(nvlink.TRANSMITTED).get(key))
    known = [total / 1024 for total in totals if total is not None]
    assert totals[3] is totals[5] is totals[8] is None
    assert bench.readings[ReadKey("nvlink", "totals", "GPU-0")].failure is None
    assert known == [1000, 2000, 3000, 4000, 20, 30, 35, 45]


def test_a_doubtful_counter_is_absent_with_its_reason() -> None:
    bench = GpuBench(gpus=1)
    for raw in (1000, 0):
        bench.nvml.fields[138, ALL_LINKS] = raw
        bench.run()
    assert bench.reasons(nvlink.TRANSMITTED) == {("0", "GPU-0"): Reason.UNKNOWN}


def test_a_link_that_refuses_its_errors_silences_no_other() -> None:
    bench = GpuBench(gpus=1, system="dgx-a100@510")

    def errors(_: int, __: object, link: int, kind: int) -> int:
        if link == 0 and kind == 0:
            raise bench.nvml.NVMLError(NOT_SUPPORTED)
        return 10 * link + kind

    bench.nvml.answers["NvLinkErrorCounter"] = errors
    bench.run()
    found = bench.values(nvlink.ERRORS)
    assert found["0", "GPU-0", "1", "replay"] == 10
    assert found["0", "GPU-0", "0", "ecc_data"] == 4
    assert len(found) == 12 * 5 - 1
    assert bench.reasons(nvlink.ERRORS) == {("0", "GPU-0", "0", "replay"): Reason.UNSUPPORTED}


def test_the_utilisation_buffer_gives_a_duty_cycle_its_share() -> None:
    bench = GpuBench(gpus=1)
    works(bench, 0.3)
    bench.nvml.answers["UtilizationRates"] = SimpleNamespace(gpu=0, memory=0)
    bench.run(3)
    started = bench.values(activity.ACTIVE_SECONDS)["0", "GPU-0"]
    bench.run(60)
    active = bench.values(activity.ACTIVE_SECONDS)["0", "GPU-0"]
    assert (active - started) / 60 == pytest.approx(0.30, abs=0.005)


@pytest.mark.parametrize(("pids", "seen"), [([77], True), ([], False)])
def test_activity_is_that_of_the_last_second_while_somebody_is_there(
    pids: list[int], seen: bool
) -> None:
    """Read every 5 s, a change was reported up to 5 s late, and of each GPU at another moment."""
    bench = GpuBench(gpus=1)
    works(bench, 0.01)
    bench.machine.gpus[0].processes = [SimulatedGpuProcess(pid, 0) for pid in pids]
    bench.run(11)
    works(bench, 1.0)
    bench.run(2)
    assert (bench.values(activity.ACTIVITY)["0", "GPU-0"] == 1.0) is seen


@pytest.mark.parametrize(("code", "seconds"), [(NOT_SUPPORTED, 24.0), (NOT_FOUND, 0.0)])
def test_the_gauge_is_integrated_without_a_buffer_but_not_with_an_empty_one(
    code: int, seconds: float
) -> None:
    bench = GpuBench(gpus=1)
    bench.machine.driver.fail("nvmlDeviceGetSamples", code)
    bench.nvml.answers["UtilizationRates"] = SimpleNamespace(gpu=40, memory=20)
    bench.run(61)
    assert bench.values(activity.ACTIVITY) == {("0", "GPU-0"): 0.4}
    assert bench.values(activity.ACTIVE_SECONDS) == {("0", "GPU-0"): pytest.approx(seconds)}


def test_a_pcie_rate_beyond_the_link_never_enters_the_counter() -> None:
    bench = GpuBench(gpus=1)
    bench.nvml.answers["PcieThroughput"] = 2_000_000
    bench.run(3)
    steady = bench.values(pcie.RECEIVED)["0", "GPU-0"]
    assert steady == pytest.approx(2 * 2e9)
    bench.nvml.answers["PcieThroughput"] = 2_000_000_000
    bench.run()
    assert bench.reasons(pcie.RECEIVED) == {("0", "GPU-0"): Reason.IMPLAUSIBLE}
    bench.nvml.answers["PcieThroughput"] = 2_000_000
    bench.run()
    assert bench.values(pcie.RECEIVED)["0", "GPU-0"] <= steady + 2 * 2e9


def with_gpm() -> GpuBench:
    bench = GpuBench(gpus=1, gpm=True)
    bench.nvml.means = {1: 30.0, 2: 20.0, 5: None, 20: 100.0, 21: 50.0}
    return bench


def test_gpm_means_are_integrated_and_a_metric_without_value_is_absent() -> None:
    bench = with_gpm().run(11)
    key = ("0", "GPU-0")
    assert bench.values(activity.ACTIVITY)[key] == 0.3
    assert bench.values(activity.ACTIVE_SECONDS)[key] == pytest.approx(3.0)
    assert bench.values(pcie.TRANSMITTED)[key] == pytest.approx(1000 * PCIE_UNIT)
    assert bench.reasons(activity.TENSOR_ACTIVE) == {key: Reason.UNKNOWN}
    bench.nvml.means[1] = None
    bench.run()
    assert bench.reasons(activity.ACTIVE_SECONDS) == {key: Reason.UNKNOWN}


@pytest.mark.parametrize("odd", [nan, inf, -1.0, 1e12])
def test_a_gpm_mean_that_cannot_be_is_summed_up_by_no_source(odd: float) -> None:
    bench, key = with_gpm().run(11), ("0", "GPU-0")
    counters = activity.ACTIVE_SECONDS, pcie.TRANSMITTED
    means, before = dict(bench.nvml.means), [bench.values(metric)[key] for metric in counters]
    bench.nvml.means |= {1: odd, 20: odd}
    bench.run()
    assert [bench.reasons(metric)[key] for metric in counters] == [Reason.IMPLAUSIBLE] * 2
    bench.nvml.means = means
    bench.run()
    grown = [bench.values(m)[key] - was for m, was in zip(counters, before, strict=True)]
    assert grown == [pytest.approx(0.3), pytest.approx(100 * PCIE_UNIT)]


def test_a_gpm_pair_that_is_too_close_takes_nothing_back() -> None:
    bench = with_gpm().run(5)
    bench.clock.advance(-0.9)
    bench.run()
    assert bench.values(activity.ACTIVITY) == {("0", "GPU-0"): 0.3}


def test_an_idle_gpu_is_asked_less_and_a_process_that_arrives_wakes_it() -> None:
    bench = GpuBench(gpus=1, gpm=True)
    bench.machine.set_scenario("idle")
    bench.run(20)
    bench.nvml.calls.clear()
    bench.run(20)
    assert bench.nvml.calls.count("nvmlGpmSampleGet") == 4
    start_process(bench.machine, 0)
    processes = [SimpleNamespace(pid=7, usedGpuMemory=None)]
    bench.nvml.answers["ComputeRunningProcesses"] = processes
    bench.run()
    assert bench.values(process.PROCESSES) == {("0", "GPU-0"): 1.0}
    bench.nvml.calls.clear()
    bench.run(10)
    assert bench.nvml.calls.count("nvmlGpmSampleGet") == 10


@pytest.mark.parametrize(("scenario", "asks"), [("starved-peer", True), ("starved-disk", False)])
def test_a_window_is_looked_at_while_data_moves_between_gpus(scenario: str, asks: bool) -> None:
    bench = simulated(f"dgx-h100:{scenario}", gpus=2).run(10)
    windows = bench.samples.all(activity.WINDOW_SM)
    assert len(windows) == (2 if asks else 0)
    if asks:  # the second GPU spins for much of the time, the first one works
        worked, waited = (windows[labels] for labels in sorted(windows))
        assert waited < 0.7 * worked


@pytest.mark.parametrize(("scenario", "copies"), [("starved-pcie", 1), ("idle", 0)])
def test_pcie_is_read_twice_within_a_moment_while_it_copies(scenario: str, copies: int) -> None:
    bench = simulated(f"dgx-h100:{scenario}", gpus=1).run(10)
    received = bench.samples.all(pcie.MOMENT[1]).values()
    assert [5e10 < rate < 7e10 for rate in received] == [True] * copies


@pytest.mark.parametrize(
    ("machine", "apart", "reason"),
    [
        ("dgx-h100", 0.0, Reason.NOT_ENOUGH),
        ("dgx-h100@550", 150e-6, Reason.DRIVER),
        ("dgx-a100@580", 150e-6, Reason.UNSUPPORTED),
    ],
)
def test_a_rate_within_a_moment_that_cannot_be_known_is_absent(
    monkeypatch: pytest.MonkeyPatch, machine: str, apart: float, reason: Reason
) -> None:
    monkeypatch.setattr(fields, "MOMENT", apart)
    bench = simulated(f"{machine}:starved-pcie", gpus=1).run(5)
    (gpu,) = bench.samples.all(pcie.RECEIVED)
    absence = bench.samples.absence(pcie.MOMENT[1], *gpu)
    assert absence is not None
    assert absence.reason is reason


def readings(bench: AgentBench, metric: object, seconds: int) -> int:
    """Return the number of times that the first GPU's value of a metric was read within so many
    seconds."""
    seen = set()
    for _ in range(seconds):
        bench.run(1)
        point = bench.samples.point(metric, *min(bench.samples.all(metric)))  # type: ignore[arg-type]
        assert point is not None
        seen.add(point[0])
    return len(seen)


def test_an_idle_gpu_is_hardly_disturbed() -> None:
    bench = simulated("dgx-h100:idle", gpus=2).run(12)
    assert readings(bench, nvlink.TRANSMITTED, 20) <= 3
    assert readings(bench, activity.ACTIVITY, 20) <= 5


def test_nvlink_is_read_each_second_as_soon_as_it_fills() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(23)
    bench.machine.set_scenario("nvlink-saturated")
    bench.run(4)
    assert readings(bench, nvlink.TRANSMITTED, 5) == 5
