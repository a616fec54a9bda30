"""A device that is plugged in late is met as it is configured, and forgotten when it goes."""

from agent import simulator as simulation
from agent.cli.assembly import Agent, Hardware
from agent.config.settings import Settings
from agent.faults.findings import findings
from agent.limits.paths import LIMIT, LIMIT_INFO, NO_DEVICE, RATIO, REFRESH
from agent.limits.resolution import LimitConfig, LimitsConfig
from agent.model import Reason
from agent.sources import network
from agent.status.words import finding_text
from tests.support.frozen_clock import FrozenClock
from tests.support.hotplug import Hotplug
from tests.support.machines import AgentBench

KEY = ("network", "eth1", "", "", "receive")
CONFIG = Settings(LimitsConfig((LimitConfig("network", "eth1", "receive", 2e7),)))
FINDING = "[[limit]] names network eth1 receive, which does not exist here"


def machine() -> tuple[AgentBench, Hotplug]:
    clock = FrozenClock()
    built = simulation.build(simulation.parse("k40:idle"), clock)
    plugs = Hotplug(built.host)
    hardware = Hardware(lambda: built.nvml, plugs.wrapped(), simulated=True)
    return AgentBench(Agent(CONFIG, hardware, clock, inline=True), clock, built), plugs


def said(bench: AgentBench) -> list[str]:
    found = map(finding_text, findings(bench.agent.poller.latest))
    return [text for text in found if "[[limit]]" in text]


def test_a_limit_waits_for_its_device() -> None:
    bench, plugs = machine()
    bench.run(3 * REFRESH)
    snapshot = bench.agent.poller.latest
    absent = [a for a in snapshot.absences(snapshot.at) if a.metric is LIMIT]
    assert [(a.labels, a.reason, a.detail) for a in absent] == [
        (KEY, Reason.MISSING, str(NO_DEVICE))
    ]
    assert said(bench) == [FINDING]
    plugs.plug("eth")
    bench.run(REFRESH + 12)
    assert bench.samples.value(LIMIT, *KEY) == 2e7
    assert bench.samples.where(LIMIT_INFO, device="eth1", origin="configured")
    assert bench.samples.value(RATIO, *KEY) is not None
    assert said(bench) == []
    plugs.unplug("eth1")
    bench.run(2 * REFRESH)
    assert said(bench) == [FINDING]


def test_nothing_is_shown_of_a_nic_that_is_gone() -> None:
    bench, plugs = machine()
    plugs.plug("eth")
    bench.run(5).skip(60).run(5)
    assert "eth1" in bench.scrape()
    plugs.unplug("eth1")
    bench.run(5).skip(60).run(5 + REFRESH)
    shown = [line for line in bench.scrape().splitlines() if "eth1" in line]
    assert shown == []
    assert bench.samples.value(network.RECEIVED, "eth1") is None
