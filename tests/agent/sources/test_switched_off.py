"""Sources that the settings switch off are not read, and nothing complains of them."""

import asyncio

import pytest

from agent.cli.assembly import Agent
from agent.cli.check import page
from agent.cli.once import StatusView
from agent.clock import SystemClock
from agent.config.decoding import Mismatch, decode
from agent.config.settings import Settings
from agent.faults.findings import Search
from agent.model import Reason, Severity
from agent.sources import disk, nvlink, xid
from agent.sources.agent_health import SOURCE_UP
from agent.sources.table import NAMES, SourcesConfig
from tests.support.machines import AgentBench, simulated
from tests.support.statuses import status_of

OFF = Settings(SourcesConfig(("disk", "infiniband", "nvlink", "workload", "xid")))


@pytest.fixture(scope="module")
def bench() -> AgentBench:
    return simulated("dgx-h100:training", OFF, gpus=2).run(12)


def test_its_metrics_are_absent_because_of_the_settings(bench: AgentBench) -> None:
    for metric in (disk.READ_BYTES, nvlink.LINKS, xid.XID_ERRORS):
        assert {a.reason for a in bench.absent(metric)} == {Reason.NOT_CONFIGURED}
        assert not bench.samples.all(metric)
    assert not {key.part for key in bench.latest.readings if key.source == "disk"} - {"off"}


def test_it_is_neither_up_nor_down_and_nothing_is_wrong(bench: AgentBench) -> None:
    up = {source: value for (source,), value in bench.samples.all(SOURCE_UP).items()}
    assert set(up.values()) == {1.0}
    assert not up.keys() & {"disk", "infiniband", "workload", "xid"}
    wrong = [f for f in Search().findings(bench.latest) if f.severity is not Severity.INFO]
    assert [f.kind for f in wrong] in ([], ["gpus_missing"])


def test_check_names_it(bench: AgentBench) -> None:
    lines = [line.strip() for line in page(StatusView(status_of(bench)))]
    assert "off: disk infiniband nvlink workload xid" in lines


@pytest.mark.parametrize("name", NAMES)
def test_any_source_can_be_switched_off_alone(name: str) -> None:
    bench = simulated("dgx-h100:training", Settings(SourcesConfig((name,))), gpus=2).run(3)
    latest = bench.latest
    assert {r.failure for r in latest.readings.values()} == {None}
    assert bench.agent.poller.waiting_for() == ""


def test_an_unknown_name_is_one_sentence() -> None:
    with pytest.raises(Mismatch, match="'disks' is not one of activity, allocation"):
        decode({"disable": ["disks"]}, SourcesConfig, "sources")


def test_xids_that_are_switched_off_have_no_listener() -> None:
    clock = SystemClock()
    bench = simulated("dgx-h100:xid")
    agent = Agent(OFF, bench.hardware, clock, inline=True)
    asyncio.run(agent.poller.tick())
    assert agent.watch.poll(0) is False
