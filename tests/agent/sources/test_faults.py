"""Faults that come and go: each is reported with its reason, and no counter lies because of it."""

from collections import Counter

import pytest

from agent.model import Metric, Reason
from agent.sources import activity, nvlink, pcie, power, xid
from agent.sources.agent_health import SOURCE_UP
from agent.specs import xids
from tests.support.machine_controls import change_answer, lose, restore
from tests.support.machines import AgentBench, simulated

UNKNOWN_ERROR = 999


def values(bench: AgentBench, metric: Metric) -> dict[tuple[str, ...], float]:
    return dict(bench.samples.all(metric))


@pytest.mark.parametrize("system", ["dgx-station-v100:training", "dgx-h100:training"])
def test_the_hourly_probe_keeps_every_total(system: str) -> None:
    bench = simulated(system, gpus=2).run(30)
    metrics = (activity.ACTIVE_SECONDS, pcie.RECEIVED, power.ENERGY)
    before = {metric: values(bench, metric) for metric in metrics}
    bench.agent.gpus.next_all_gpus = 0.0
    bench.run(16)  # past the next rediscovery
    for metric in metrics:
        after = values(bench, metric)
        assert after.keys() == before[metric].keys()
        assert all(after[key] >= value for key, value in before[metric].items())


def test_a_buffer_that_fails_for_a_while_costs_only_that_while() -> None:
    bench = simulated("gtx-1080:training").run(20)
    before = values(bench, activity.ACTIVE_SECONDS)
    bench.machine.driver.fail("nvmlDeviceGetSamples", UNKNOWN_ERROR)
    bench.run(20)
    assert values(bench, activity.ACTIVE_SECONDS) == {}
    bench.machine.driver.fail("nvmlDeviceGetSamples", None)
    bench.run(10)
    after = values(bench, activity.ACTIVE_SECONDS)
    assert all(before[key] <= after[key] <= 60 for key in before)


def test_gpm_that_fails_makes_pcie_absent_and_not_flat() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(10)
    bench.machine.driver.fail("nvmlGpmMetricsGet", UNKNOWN_ERROR)
    bench.run(10)
    assert values(bench, pcie.RECEIVED) == {}
    assert {one.reason for one in bench.absent(pcie.RECEIVED)} == {Reason.FAILED}


def test_gpm_that_never_works_does_not_hold_up_readiness() -> None:
    bench = simulated("dgx-h100:training", gpus=2)
    bench.machine.driver.fail("nvmlGpmMetricsGet", UNKNOWN_ERROR)
    bench.run(5)
    assert bench.agent.poller.waiting_for() == ""


def test_one_odd_link_silences_no_other() -> None:
    bench = simulated("dgx-station-v100:idle").run(3)
    library = bench.machine.nvml

    def odd(right: int, _: object, link: int) -> int:
        if link == 3:
            raise library.NVMLError(UNKNOWN_ERROR)
        return right

    change_answer(library, "nvmlDeviceGetNvLinkState", odd)
    bench.skip(60).run(8)
    up = Counter(key[0] for key in values(bench, nvlink.LINK_UP))
    assert set(up.values()) == {3}
    assert set(values(bench, nvlink.LINKS).values()) == {3.0}
    assert {one.reason for one in bench.absent(nvlink.LINK_UP)} == {Reason.FAILED}


def test_gpm_samples_are_given_back() -> None:
    bench = simulated("dgx-h100:training", gpus=3)
    bench.run(3)
    assert bench.machine.nvml.held()[2] == 9
    bench.agent.gpus.next_all_gpus = 0.0
    bench.run(15)
    lose(bench.machine, 2)
    bench.run(3)
    restore(bench.machine, 2)
    bench.run(15)
    assert bench.machine.nvml.held()[2] == 9


def test_a_connection_that_fails_half_way_lets_go_of_the_driver() -> None:
    bench = simulated("gtx-1080:training")
    bench.machine.driver.fail("nvmlDeviceGetCount", 9)
    bench.run(40)
    assert bench.machine.nvml.held()[0] == 0
    bench.machine.driver.fail("nvmlDeviceGetCount", None)
    bench.run(15)
    assert bench.machine.nvml.held()[0] == 1
    assert all(bench.samples.all(SOURCE_UP).values())


def test_what_gpm_cannot_mean_is_not_counted() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(5)
    library = bench.machine.nvml
    honest = library.nvmlGpmMetricsGet

    def absurd(question: object) -> object:
        honest(question)
        for slot in question.metrics[: question.numMetrics]:  # type: ignore[attr-defined]
            slot.value = 1e15 if slot.metricId == 21 else -5.0
        return question

    before = values(bench, activity.ACTIVE_SECONDS)
    library.nvmlGpmMetricsGet = absurd
    bench.run(5)
    library.nvmlGpmMetricsGet = honest
    bench.run(5)
    after = values(bench, activity.ACTIVE_SECONDS)
    assert all(before[key] <= after[key] <= before[key] + 12 for key in before)
    assert max(values(bench, pcie.RECEIVED).values()) < 100e9


def test_xid_counts_do_not_hang_on_the_host() -> None:
    bench = simulated("dgx-h100:training").run(2)
    assert {reading.source for reading in bench.latest.readings} >= {"xid", "system"}
    workers = [worker.name for worker in bench.agent.poller.workers]
    assert {"nvml", "host", "processes", "memory"} <= {*workers}
    assert len(bench.samples.all(xid.XID_ERRORS)) == 8 * len(xids.critical())


def test_links_without_a_known_state_are_not_called_down() -> None:
    bench = simulated("dgx-h100:idle", gpus=3).run(5)
    bench.machine.driver.fail("nvmlDeviceGetNvLinkState", UNKNOWN_ERROR, 0)
    bench.skip(60).run(5)
    assert {key[0] for key in bench.samples.all(nvlink.LINKS)} == {"1", "2"}
    absent = bench.absent(nvlink.LINKS)
    assert [(a.labels[0], a.reason) for a in absent] == [("0", Reason.FAILED)]
