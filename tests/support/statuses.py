"""Helpers for tests of the status: simulated machines under a frozen clock, with their board."""

from dataclasses import dataclass

from agent.cli.once import StatusView
from agent.cli.options import board_of
from agent.config.settings import Section, Settings
from agent.diagnosis.thresholds import Thresholds
from agent.model import Snapshot
from agent.status.build import StatusBoard
from agent.status.model import Status
from tests.support.machines import AgentBench, simulated


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
    agent = bench.agent
    board = board_of(agent, bench.hardware)
    agent.faults.waits = False
    agent.faults.observe(agent.poller.latest)
    board(agent.poller.latest)
    return board.status()


def shown(name: str, *sections: Section, gpus: int | None = None) -> Shown:
    """A machine of this name that has not ticked yet; a GPU is held after 5 s, not a minute."""
    bench = simulated(name, Settings(Thresholds(held_after=5.0), *sections), gpus)
    return Shown(bench, board_of(bench.agent, bench.hardware))
