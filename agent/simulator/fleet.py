"""A simulated fleet: the role of each node. README.md beside this describes the nodes."""

from collections.abc import Iterator
from dataclasses import dataclass

from agent.errors import BadInput
from agent.simulator.scenarios import SLOW_NODE, WAITS_FOR_NODE

CLUSTER = "simulated"
FEWEST, MOST = 4, 1000
RACK = 4
"""Nodes: as many DGX-1 as a switch of the first level has (NVIDIA DGX-1 With Tesla V100 System
Architecture, section 3.3)."""

JOINT = 16  # nodes of the largest job, one of them slow; in a small fleet it has half of them
ROLES = (
    *(("training", "vision"), ("training", "vision"), ("gpu-lost", "vision"), ("idle", "")),
    *(("starved-disk", "speech"), ("training", "language"), ("held", "notebook")),
    *(("training", "language"), ("training", "vision"), ("idle", ""), ("training", "speech")),
)
"""Scenario and user of the nodes outside that job, in turn; a GPU is lost on the first of them
alone."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node: its place, its agent's scenario, and the job on it."""

    number: int
    scenario: str
    user: str  # and account; empty if no job is on it
    job_id: str

    @property
    def name(self) -> str:
        return f"dgx-{self.number:03d}"

    @property
    def rack(self) -> str:
        return f"r{(self.number - 1) // RACK + 1:02d}"

    @property
    def address(self) -> str:
        """An address of loopback: all of 127.0.0.0/8 belongs to this machine."""
        return f"127.124.{self.number // 250}.{self.number % 250 + 1}"


def plan(number: int) -> tuple[NodePlan, ...]:
    """The nodes of a fleet; raises BadInput for an impossible number."""
    if not FEWEST <= number <= MOST:
        raise BadInput(f"a fleet has {FEWEST} to {MOST} nodes, not {number}")
    return tuple(_nodes(number, min(JOINT, number // 2)))


def _nodes(number: int, joint: int) -> Iterator[NodePlan]:
    for node in range(1, joint + 1):
        scenario = SLOW_NODE if node == joint - 2 else WAITS_FOR_NODE
        yield NodePlan(node, scenario, "ada", "4711")
    for node in range(joint + 1, number + 1):
        turn, place = divmod(node - joint - 1, len(ROLES))
        scenario, user = ROLES[place]
        scenario = "training" if turn and scenario == "gpu-lost" else scenario
        yield NodePlan(node, scenario, user, f"{6000 + node}")
