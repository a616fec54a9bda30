"""GPUs that come, go, refuse and return: each costs only itself."""

import logging
from typing import Any

import pytest

from agent.hardware.device import NvmlDevice
from agent.model import Reason
from agent.polling import intervals
from agent.polling.gpu_state import GpuState
from agent.polling.gpu_watch import CONNECTION
from agent.polling.reads import Read, ReadOutput
from agent.simulator.driver import HANDLES, address_of
from agent.sources import activity, clocks, gpu, memory, nvlink, pcie, power
from agent.specs import xids
from tests.support.fake_gpus import NOT_SUPPORTED, TIMEOUT, GpuBench
from tests.support.machine_controls import lose, reload_driver, restore, set_mig


def listened(bench: GpuBench) -> set[int]:
    """The GPUs whose events are waited for."""
    return {index for one in bench.machine.driver.sets.values() for index in one.gpus}


@pytest.fixture
def bench() -> GpuBench:
    return GpuBench()


def test_every_gpu_answers_at_the_first_turn(bench: GpuBench) -> None:
    assert not bench.inventory.complete()
    bench.run()
    assert bench.inventory.complete()
    assert bench.values(power.POWER).keys() == {("0", "GPU-0"), ("1", "GPU-1")}
    assert bench.inventory.inventory.answering == bench.inventory.inventory.most == 2


def test_a_driver_that_is_not_there_yet_is_asked_again_each_ten_seconds(bench: GpuBench) -> None:
    bench.nvml.missing = True
    bench.run(3)
    assert bench.inventory.complete(), "a machine without a driver is ready to be served"
    assert "nvmlInit: Driver Not Loaded" in str(bench.readings[CONNECTION].failure)
    assert "--simulate" in str(bench.readings[CONNECTION].failure)
    assert list(bench.readings) == [CONNECTION]
    bench.nvml.missing = False
    bench.run(7)
    assert not bench.inventory.inventory.connected
    bench.run(1)
    assert bench.inventory.inventory.driver_version.startswith("580.")
    assert bench.readings[CONNECTION].failure is None
    assert bench.uuids() == ["GPU-0", "GPU-1"]


def test_no_gpu_is_ready_before_the_first_turn_is_over() -> None:
    bench = GpuBench()
    seen: list[bool] = []
    build = bench.inventory.watched.build

    def observed(device: NvmlDevice, state: GpuState, count: int) -> list[Read]:
        seen.append(bench.inventory.complete())
        seen.append(bench.inventory.inventory.connected)
        seen.append(bench.inventory.events() is not None)
        return list(build(device, state, count))

    bench.inventory.watched.build = observed
    bench.run()
    assert seen == [False] * 6


def test_a_lost_gpu_costs_only_itself_and_returns(bench: GpuBench) -> None:
    bench.run(2)
    lose(bench.machine, 1)
    bench.run(2)
    assert bench.uuids() == ["GPU-0"]
    assert set(bench.reasons(power.POWER).values()) == {Reason.LOST}
    assert set(bench.reasons(clocks.CLOCK).values()) == {Reason.LOST}
    assert set(bench.inventory.inventory.lost) == {"GPU-1"}
    assert bench.inventory.inventory.answering == 1
    assert all(r.failure is None for r in bench.readings.values())
    restore(bench.machine, 1)
    bench.run(10)
    assert bench.uuids() == ["GPU-0", "GPU-1"]
    assert not bench.inventory.inventory.lost
    assert not bench.reasons(power.POWER)
    assert bench.forgotten == []


def test_a_lost_gpu_is_still_reported_after_the_hourly_probe(bench: GpuBench) -> None:
    bench.run(2)
    lose(bench.machine, 1)
    bench.run(2)
    bench.clock.advance(intervals.TOPOLOGY)
    bench.run(2)
    assert bench.reasons(power.POWER) == {("1", "GPU-1"): Reason.LOST}
    assert set(bench.inventory.inventory.lost) == {"GPU-1"}
    restore(bench.machine, 1)
    bench.run(11)
    assert bench.uuids() == ["GPU-0", "GPU-1"]


def test_a_driver_reload_is_noticed_reconnected_and_probed_again(bench: GpuBench) -> None:
    bench.run(3)
    generation = bench.inventory.inventory.generation
    reload_driver(bench.machine)
    bench.run()
    assert set(bench.reasons(power.POWER).values()) == {Reason.NO_DRIVER}
    assert "Uninitialized" in str(bench.readings[CONNECTION].failure)
    bench.machine.driver.version = "570.10"
    bench.run()
    assert bench.inventory.inventory.driver_version == "570.10"
    assert bench.inventory.inventory.generation > generation
    assert bench.uuids() == ["GPU-0", "GPU-1"]
    assert not bench.reasons(power.POWER)


def test_a_gpu_that_a_reload_takes_away_is_forgotten(bench: GpuBench) -> None:
    bench.run(3)
    reload_driver(bench.machine)
    del bench.machine.gpus[1]
    bench.run(2)
    assert {key.device for key in bench.readings} == {"", "GPU-0"}
    assert bench.inventory.inventory.answering == 1
    assert bench.inventory.inventory.most == 2


def test_a_reload_is_noticed_though_every_gpu_is_lost() -> None:
    bench = GpuBench(gpus=1).run(2)
    lose(bench.machine, 0)
    bench.run(2)
    reload_driver(bench.machine)
    restore(bench.machine, 0)
    bench.run(10)
    assert bench.uuids() == ["GPU-0"]
    assert bench.inventory.inventory.connected


def test_an_index_may_shift_but_a_uuid_stays() -> None:
    bench = GpuBench(gpus=3).run(2)
    lose(bench.machine, 0)
    bench.run()
    del bench.machine.gpus[0]
    bench.run(10)
    assert bench.values(power.POWER).keys() == {("0", "GPU-1"), ("1", "GPU-2")}
    assert bench.inventory.inventory.answering == 2
    assert bench.reasons(power.POWER) == {("0", "GPU-0"): Reason.LOST}


def test_mig_is_the_reason_where_the_whole_gpu_refuses() -> None:
    bench = GpuBench()
    set_mig(bench.machine, 0, on=True)
    bench.run(2)
    for metric in (gpu.UTILIZATION, activity.ACTIVITY, pcie.RECEIVED):
        assert bench.reasons(metric)["0", "GPU-0"] is Reason.MIG
        assert list(bench.values(metric)) == [("1", "GPU-1")]
    assert bench.uuids() == ["GPU-0", "GPU-1"]


def test_a_read_that_raises_fails_alone(bench: GpuBench) -> None:
    def odd(right: Any, handle: Any, *_: Any) -> Any:
        if address_of(handle) == HANDLES:
            raise ValueError("odd struct")
        return right

    bench.nvml.answers["MemoryInfo_v2"] = odd
    bench.run(2)
    assert bench.uuids() == ["GPU-0", "GPU-1"]
    assert bench.reasons(memory.USED) == {("0", "GPU-0"): Reason.FAILED}
    failures = [r.failure for r in bench.readings.values() if r.failure]
    assert len(failures) == 1
    assert failures[0][::2] == ("ValueError", "odd struct")
    assert not bench.inventory.inventory.lost


def test_a_gpu_that_does_not_answer_is_complained_of_once(
    bench: GpuBench, caplog: pytest.LogCaptureFixture
) -> None:
    lose(bench.machine, 0)
    with caplog.at_level(logging.WARNING):
        bench.run(25)
    assert bench.uuids() == ["GPU-1"]
    assert [r.getMessage() for r in caplog.records] == [
        'event=gpu_not_answering gpu=0 error="nvmlDeviceGetHandleByIndex: GPU is lost"'
    ]


def test_fields_refused_as_a_whole_do_not_cost_the_gpu(bench: GpuBench) -> None:
    bench.machine.driver.fail("nvmlDeviceGetFieldValues", NOT_SUPPORTED, 0)
    bench.run(2)
    assert bench.uuids() == ["GPU-0", "GPU-1"]
    assert bench.reasons(nvlink.RECEIVED) == {("0", "GPU-0"): Reason.UNSUPPORTED}


def test_energy_keeps_its_counter_after_one_refusal_that_is_not_for_good(bench: GpuBench) -> None:
    bench.machine.driver.fail("nvmlDeviceGetTotalEnergyConsumption", TIMEOUT, 0)
    bench.run(2)
    assert bench.reasons(power.ENERGY) == {("0", "GPU-0"): Reason.STALLED}
    bench.machine.driver.failures.clear()
    bench.run(10)
    assert set(bench.values(power.ENERGY)) == {("0", "GPU-0"), ("1", "GPU-1")}


def test_xids_start_at_0_are_counted_and_kept_after_the_gpu_is_lost(bench: GpuBench) -> None:
    assert bench.watch.poll(0) is False, "no driver to listen to yet"
    bench.run(2)
    assert bench.watch.poll(0)
    for code in (48, 48, 13):
        bench.machine.driver.xid(1, code)
        assert bench.watch.poll(0)
    lose(bench.machine, 1)
    bench.run(2)
    counted = bench.xids()
    assert counted["1", "GPU-1", "48"] == 2
    assert counted["1", "GPU-1", "13"] == 1
    assert counted["1", "GPU-1", "79"] == counted["0", "GPU-0", "48"] == 0
    assert len(counted) == 2 * len(xids.critical()) + 1


def test_xids_are_heard_of_after_a_reload_and_of_a_gpu_that_returned(bench: GpuBench) -> None:
    bench.run(2)
    bench.watch.poll(0)
    reload_driver(bench.machine)
    assert bench.watch.poll(0) is False
    assert bench.watch.poll(0) is False
    lose(bench.machine, 1)
    bench.run(2)
    bench.watch.poll(0)
    assert listened(bench) == {0}
    restore(bench.machine, 1)
    bench.run(10)
    bench.watch.poll(0)
    assert listened(bench) == {0, 1}
    bench.machine.driver.xid(1, 74)
    bench.watch.poll(0)
    assert bench.xids()["1", "GPU-1", "74"] == 1


def test_event_sets_do_not_pile_up(bench: GpuBench) -> None:
    bench.run(2)
    bench.machine.driver.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED)
    for _ in range(5):
        assert bench.watch.poll(0) is False
    assert bench.nvml.held()[1] == 0


def test_a_gpu_without_events_is_absent_and_costs_the_others_nothing(bench: GpuBench) -> None:
    bench.machine.driver.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED, 0)
    bench.run(2)
    bench.watch.poll(0)
    out = ReadOutput(0.0)
    bench.counts.read(out)
    assert {s.labels[1] for s in out.samples} == {"GPU-1"}
    assert [(a.labels, a.reason) for a in out.absences] == [(("0", "GPU-0"), Reason.UNSUPPORTED)]
