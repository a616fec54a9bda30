"""Helpers for tests of the live page: simulated machines with a page open on them."""

from dataclasses import dataclass, replace
from typing import Any

from agent import simulator
from agent.cli.assembly import Agent, Hardware
from agent.cli.options import view_of
from agent.config.settings import Section, Settings
from agent.diagnosis.thresholds import Thresholds
from agent.model import Snapshot
from agent.simulator import models
from exporters.live.feed import Feed
from exporters.live.findings_document import findings_document
from exporters.live.page_state import PageState, whole
from exporters.live.view import View
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import AgentBench, first_gpus

Document = dict[str, Any]

HELD_AFTER = 5.0  # s, not a minute
SIXTEEN = replace(
    models.ALL["dgx-a100"],
    name="sixteen",
    product="Two trays of eight",
    vendor="Somebody",
    buses=tuple(range(0x10, 0x20)),
)
"""More GPUs than any system of the simulation has."""


@dataclass
class Watched:
    """A machine under a frozen clock, the view of its agent, and the state of an open page."""

    bench: AgentBench
    view: View
    page_state: PageState

    def run(self, seconds: int) -> "Watched":
        """Tick once a second."""
        self.bench.run(seconds - 1)
        self.tick()
        return self

    def tick(self) -> Snapshot:
        """One tick and its second; what was read in it."""
        heard: list[Snapshot] = []
        self.bench.agent.poller.listeners[:] = [heard.append]
        self.bench.run(1)
        self.bench.agent.poller.listeners.clear()
        self.page_state.take(heard[0], self.page_state.known, None)
        return heard[0]

    def hurry(self) -> "Watched":
        """Let everything be read at the next tick, however seldom it is."""
        for read in self.bench.agent.gpus.reads():
            read.due = 0.0
        return self

    def frame(self) -> Document:
        """Return the decoded page of the last tick."""
        snapshot = self.page_state._snapshot
        self.page_state.take(snapshot, findings_document(self.view))
        return whole(self.page_state.machine(), self.page_state.tick())


def simulation(name: str, gpus: int | None = None) -> simulator.Simulation:
    """A machine of `SYSTEM[@DRIVER][:SCENARIO]`, the system `sixteen` included, or its first GPUs
    alone where it has NVSwitches."""
    system, _, scenario = name.partition(":")
    if system == SIXTEEN.name:
        return simulator.Simulation(SIXTEEN, SIXTEEN.driver, scenario)
    return first_gpus(name, gpus)


def watched(name: str, *sections: Section, gpus: int | None = None) -> Watched:
    """A machine of this name, and an open page on it."""
    clock = FrozenClock()
    machine = simulator.build(simulation(name, gpus), clock)
    hardware = Hardware(lambda: machine.nvml, machine.host, simulated=True)
    config = Settings(Thresholds(held_after=HELD_AFTER), *sections)
    agent = Agent(config, hardware, clock, inline=True)
    view = view_of(agent, hardware)
    return Watched(AgentBench(agent, clock, machine), view, PageState(view))


def feed_of(machine: Watched) -> Feed:
    """A feed over the machine; who plays the ticks reports it of them."""
    return Feed(machine.view)
