"""Helpers for tests of the status: simulated machines under a frozen clock, with their board."""

from dataclasses import dataclass

from msgspec.structs import replace

from agent import simulator
from agent.cli.assembly import Agent, Hardware
from agent.cli.once import StatusView
from agent.cli.options import board_of
from agent.config.settings import Section, Settings
from agent.diagnosis.thresholds import Thresholds
from agent.model import Snapshot
from agent.simulator import models
from agent.specs.sheets import SpecConfig
from agent.status.build import StatusBoard
from agent.status.model import Status
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import AgentBench, first_gpus

HELD_AFTER = 5.0  # s, not a minute


def rack(gpus: int) -> models.SystemModel:
    """More GPUs than any system of the simulation has."""
    return replace(
        models.ALL["dgx-a100"],
        name={16: "sixteen"}.get(gpus, f"rack-{gpus}"),
        product=f"A machine of {gpus}",
        vendor="Somebody",
        buses=tuple(range(0x10, 0x10 + gpus)),
    )


RACKS = {rack(gpus).name: rack(gpus) for gpus in (16, 72)}


@dataclass
class Shown:
    """A machine, and the board of its agent."""

    bench: AgentBench
    board: StatusBoard

    def run(self, seconds: int) -> "Shown":
        """Tick once a second."""
        self.bench.run(seconds)
        return self

    def skip(self, seconds: float) -> "Shown":
        """Let time pass in which it does not tick, then tick until it looked for faults again: what
        is read seldom was read."""
        self.bench.skip(seconds).run(6)
        return self

    def tick(self) -> Snapshot:
        """One tick and its second; what was read in it."""
        return self.run(1).board.snapshot

    @property
    def status(self) -> Status:
        return self.board.status()

    @property
    def look(self) -> StatusView:
        return StatusView(self.status)


def status_of(bench: AgentBench) -> Status:
    """Return the status of a machine that has ticked without a board, as of one look."""
    agent, host = bench.agent, bench.machine.host
    board = board_of(agent, Hardware(lambda: bench.machine.nvml, host, simulated=True))
    agent.faults.waits = False
    agent.faults.observe(agent.poller.latest)
    board(agent.poller.latest)
    return board.status()


def simulation(name: str, gpus: int | None = None) -> simulator.Simulation:
    """A machine of `SYSTEM[@DRIVER][:SCENARIO]`, those of RACKS included, or its first GPUs alone
    where it has NVSwitches."""
    system, _, scenario = name.partition(":")
    if system in RACKS:
        return simulator.Simulation(RACKS[system], scenario)
    return first_gpus(name, gpus)


def shown(name: str, *sections: Section, gpus: int | None = None) -> Shown:
    """A machine of this name that has not ticked yet; it misses none of the GPUs that it has."""
    clock = FrozenClock()
    machine = simulator.build(simulation(name, gpus), clock)
    hardware = Hardware(lambda: machine.nvml, machine.host, simulated=True)
    expected = SpecConfig(gpus=len(machine.gpus) if gpus else 0)
    settings = Settings(Thresholds(held_after=HELD_AFTER), expected, *sections)
    agent = Agent(settings, hardware, clock, inline=True)
    return Shown(AgentBench(agent, clock, machine), board_of(agent, hardware))
