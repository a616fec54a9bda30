"""Plan of a simulated fleet: racks of nodes, jobs over them, and events by node.

The same number of nodes gives the same fleet. README.md beside this says what a node of it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import inf
from typing import NamedTuple

from agent.errors import BadInput
from agent.simulator.noise import noise
from agent.simulator.scenarios import SLOW_NODE, WAITS_FOR_NODE

CLUSTER = "simulated"
FEWEST, MOST, USUAL = 4, 1000, 124
RACK = 4
"""Nodes: as many DGX-1 as a switch of the first level has (NVIDIA DGX-1 With Tesla V100 System
Architecture, section 3.3)."""

JOINT = 16  # Nodes of the largest job, of which one is slow; in a small fleet it has half of them
NETWORK = "127.124"
"""Node n has the address 127.124.X.Y: all of 127.0.0.0/8 is this machine, and no other's."""


class Phase(NamedTuple):
    """State of a node for a number of seconds."""

    scenario: str
    seconds: float = inf


class FleetJob(NamedTuple):
    """A job as Slurm would name it."""

    job_id: str
    user: str
    account: str
    partition: str = "gpu"


class Outage(NamedTuple):
    """Outage of power from `begin` for so many seconds, again each `every` (s)."""

    begin: float
    seconds: float
    every: float

    def holds(self, now: float) -> bool:
        return now >= self.begin and (now - self.begin) % self.every < self.seconds


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: where it is, what its agent reports, and what of that is its own."""

    number: int
    rack: str
    phases: Sequence[Phase]  # one after the other, and then again
    job: FleetJob | None = None
    shift: float = 0.0  # s by which it is ahead in its phases
    outage: Outage | None = None
    removed: float = inf  # from then on it is no target any more (s)
    warmer: float = 0.0  # degrees of its first GPU above its like
    symbol_errors: float = 0.0  # an hour, of its second InfiniBand port
    version: str = ""  # of its agent, where it is another

    @property
    def name(self) -> str:
        return f"dgx-{self.number:03d}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number // 250}.{self.number % 250 + 1}"

    def scenario(self, now: float) -> str:
        at = (now + self.shift) % sum(phase.seconds for phase in self.phases)
        for phase in self.phases:
            if at < phase.seconds:
                return phase.scenario
            at -= phase.seconds
        return self.phases[-1].scenario

    def answers(self, now: float) -> bool:
        return now < self.removed and not (self.outage and self.outage.holds(now))


ROLES: tuple[tuple[str, Sequence[Phase]], ...] = (
    ("vision", (Phase("training"),)),
    ("vision", (Phase("training"),)),
    ("speech", (Phase("starved-disk", 300.0), Phase("training", 900.0))),
    ("", (Phase("idle"),)),
    ("vision", (Phase("training"),)),
    ("vision", (Phase("training"),)),
    ("notebook", (Phase("held"),)),
    ("speech", (Phase("training", 1500.0), Phase("starved-disk", 120.0))),
    ("vision", (Phase("training"),)),
    ("vision", (Phase("training"),)),
    ("", (Phase("idle"),)),
    ("vision", (Phase("starved-peer", 600.0), Phase("training", 1200.0))),
)
"""Job and role of each node, in turn, for all without an event of their own."""

POWER_CUT = 300.0  # Seconds until the last rack loses its power, for ten minutes of each hour
TAKEN_OUT = 900.0
OTHER_VERSION = "0.0.9"


def plan(number: int, power_cut: float = POWER_CUT) -> tuple[NodePlan, ...]:
    """The nodes of a fleet; raises BadInput for a number that cannot be."""
    if not FEWEST <= number <= MOST:
        raise BadInput(f"a fleet has {FEWEST} to {MOST} nodes, not {number}")
    nodes = [*_joint(min(JOINT, number // 2)), *_others(min(JOINT, number // 2), number)]
    return tuple(_eventful(nodes, Outage(power_cut, 600.0, 3600.0)))


def _rack(number: int) -> str:
    return f"r{(number - 1) // RACK + 1:02d}"


def _joint(size: int) -> Iterator[NodePlan]:
    """One job over so many nodes; the third last is slower, and the others wait for it."""
    job = FleetJob("4711", "ada", "language")
    for number in range(1, size + 1):
        scenario = SLOW_NODE if number == size - 2 and size > 2 else WAITS_FOR_NODE
        yield NodePlan(number, _rack(number), (Phase(scenario),), job)


def _others(first: int, last: int) -> Iterator[NodePlan]:
    for number, (user, phases) in zip(range(first + 1, last + 1), cycle(ROLES), strict=False):
        # Nodes of a rack that train work on one job; any other is alone with its own.
        together = phases == (Phase("training"),)
        name = f"{5000 + (number - 1) // RACK}" if together else f"{6000 + number}"
        job = FleetJob(name, user, user) if user else None
        shift = 900.0 * (1.0 + noise(number))
        yield NodePlan(number, _rack(number), phases, job, shift)


def _eventful(nodes: Sequence[NodePlan], cut: Outage) -> Iterator[NodePlan]:
    """Return the nodes with events of their own, and the last rack."""
    joint, racks = min(JOINT, len(nodes) // 2), _rack(len(nodes))
    for node in nodes:
        place = node.number - joint
        if node.rack == racks != _rack(1):
            yield replace(node, outage=cut)
        elif place == 3:
            yield replace(node, phases=(Phase("gpu-lost"),), shift=0.0)
        elif node.number == 2:
            yield replace(node, warmer=9.0)
        elif place == 6:
            yield replace(node, symbol_errors=40.0)
        elif place == 9:
            yield replace(node, version=OTHER_VERSION)
        elif place == 10:
            yield replace(node, removed=TAKEN_OUT)
        else:
            yield node
