"""Plans a simulated fleet: the scenario and job of each node. See README.md in this folder."""

from collections.abc import Iterator
from dataclasses import dataclass

from agent.errors import BadInput
from agent.simulator.scenarios import SLOW_NODE, WAITS_FOR_NODE

CLUSTER = "simulated"
FEWEST, MOST = 4, 1000
RACK = 4
"""Number of nodes per rack. A first-level switch connects four DGX-1 systems (NVIDIA DGX-1 With
Tesla V100 System Architecture, section 3.3)."""

JOINT = 16  # Maximum nodes of the largest job, which includes a slow node
ROLES = (
    *(("training", "vision"), ("training", "vision"), ("gpu-lost", "vision"), ("idle", "")),
    *(("starved-disk", "speech"), ("training", "language"), ("held", "notebook")),
    *(("training", "language"), ("training", "vision"), ("idle", ""), ("training", "speech")),
)
"""Scenario and user of nodes outside the largest job, repeated, but with one lost GPU."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node of the fleet: its number, its scenario, and its job."""

    number: int
    scenario: str
    user: str  # also the account; empty if the node has no job
    job_id: str

    @property
    def name(self) -> str:
        return f"dgx-{self.number:03d}"

    @property
    def rack(self) -> str:
        return f"r{(self.number - 1) // RACK + 1:02d}"


def plan(number: int) -> tuple[NodePlan, ...]:
    """Return the nodes of a fleet. Raise BadInput if `number` is out of range."""
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
