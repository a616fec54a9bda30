"""Scenarios and single faults: their effects, the systems that support them, and the scenario and
job of each node of a simulated fleet.

README.md in this folder lists the GPUs that each scenario affects. Two scenarios run only in
fleets: in waits-for-node, the node waits for another node of its job in each step, and in
slow-node, another node waits for it. A single fault, such as `xid-79` (XID 79), runs with training.
A name may combine a scenario and faults, as in `training+ecc-rising+raid-degraded`.

After each fault, `Machine.apply` updates the rates of the machine's counters.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate, chain, count, cycle, islice, repeat, takewhile
from math import inf
from operator import itemgetter
from typing import Literal

from msgspec import Struct, convert

from agent.errors import BadInput
from agent.metrics import beside
from agent.simulator.loads import ScenarioLoad, parts_of
from agent.simulator.models import SystemModel, meets

TOUR, SLOT, PAUSE = "tour", 120.0, 30.0
"""TOUR: name of the tour, which runs many scenarios in turn. SLOT: seconds for which each scenario
runs, enough for a verdict. PAUSE: seconds of training between two scenarios."""

WAITS_FOR_NODE, SLOW_NODE = "waits-for-node", "slow-node"
"""Scenarios that run only in fleets, in which the machine runs one part of a multi-node job."""


class Need(Struct, frozen=True, forbid_unknown_fields=True):
    """A requirement of scenarios: its description, and the conditions for `meets` (`of`)."""

    words: str
    of: str


class Breakage(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of scenarios.toml. Its fault, if any, occurs `at` seconds after the scenario starts,
    but not within `wall` wall-clock seconds. If `every` is not 0, the fault occurs again every
    `every` seconds."""

    needs: str = ""
    set: dict[str, bool | int | float] = {}
    breaks: dict[
        str, Literal["slow", "errors", "down", "dead", "hot", "damaged", "failing", "fan", "supply"]
    ] = {}
    call: tuple[tuple[int | str, ...], ...] = ()
    at: float = 0.0
    wall: float = 0.0
    every: float = 0.0


class _Table(Struct, forbid_unknown_fields=True):
    needs: dict[str, Need]
    scenarios: dict[str, Breakage]
    faults: dict[str, Breakage]


_TABLE = convert(beside(__file__), _Table)
SCENARIOS, FAULTS = _TABLE.scenarios, _TABLE.faults
NAMES = tuple(SCENARIOS)


def _fault(name: str) -> Breakage | None:
    if found := re.fullmatch(r"xid-([1-9]\d{0,2})", name):
        return Breakage(call=(("xid", int(found[1])),), at=5.0, every=20.0)
    if name in (WAITS_FOR_NODE, SLOW_NODE):
        return Breakage()
    return SCENARIOS.get(name) or FAULTS.get(name)


def parts(name: str) -> tuple[str, ...]:
    """Return the parts of a name such as `training+ecc-rising`, or () if one is unknown."""
    names = tuple(name.split("+"))
    return names if all(map(_fault, names)) and (len(names) == 1 or TOUR not in names) else ()


def missing(system: SystemModel, scenario: str) -> str:
    """Return the descriptions of the scenario's requirements that the system does not meet, joined
    by "and". Return an empty string if it meets all."""
    needs = [fault.needs for part in parts(scenario) if (fault := _fault(part))]
    unmet = (_TABLE.needs[name] for name in needs if name)
    return " and ".join(need.words for need in unmet if not meets(need.of, system.model, system))


def possible(system: SystemModel) -> tuple[str, ...]:
    return tuple(name for name in NAMES if not missing(system, name))


def stops(system: SystemModel) -> tuple[tuple[str, float], ...]:
    """Return the scenarios of the tour with their durations in seconds. Training follows each
    scenario except `idle`. The next scenario, `held`, requires that the GPUs were idle before."""
    stays: list[tuple[str, float]] = []
    for name in possible(system):
        if name not in ("training", TOUR):
            stays.append((name, SLOT))
            if name != "idle":
                stays.append(("training", PAUSE))
    return tuple(stays)


def playing(system: SystemModel, name: str, elapsed: float) -> str:
    """Return the name of the scenario after `elapsed` seconds. In a tour, add the next one."""
    if name != TOUR:
        return name
    tour = stops(system)
    left = elapsed % sum(seconds for _, seconds in tour)
    for (stop, seconds), (after, _) in zip(tour, (*tour[1:], tour[0]), strict=True):
        if left < seconds:
            return f"{stop}, in {seconds - left:.0f} s {after}"
        left -= seconds
    raise AssertionError(elapsed)


SLACK = 1e-9  # s, tolerance for floating-point errors when comparing times

Change = tuple[float, str | ScenarioLoad | Breakage]
"""A change: its time (s), and the name of a scenario, the load, or the fault that begins then."""


def timeline(system: SystemModel, name: str, begin: float, speed: float) -> Iterator[Change]:
    """Yield the changes of a scenario, or of all scenarios in the tour, in order of time."""
    if name != TOUR:
        return _course(name, begin, inf, speed)
    begins = accumulate((seconds for _, seconds in cycle(stops(system))), initial=begin)
    slots = zip(cycle(stops(system)), begins)
    courses = (_course(stop, at, at + length, speed) for (stop, length), at in slots)
    return chain.from_iterable(courses)


def _course(name: str, begin: float, end: float, speed: float) -> Iterator[Change]:
    """Yield the changes of a scenario until time `end` (s): its loads and its faults."""
    loads = parts_of(parts(name)[0])
    begins = accumulate(cycle(load.seconds for load in loads), initial=begin)
    changes: list[Iterator[Change]] = [islice(zip(begins, cycle(loads)), 1, None)]
    for fault in filter(None, map(_fault, parts(name))):
        if fault.set or fault.breaks or fault.call:
            first = begin + max(fault.at, fault.wall * speed)
            times = count(first, fault.every) if fault.every else (first,)
            changes.append(zip(times, repeat(fault)))
    yield begin, name
    merged = merge(*changes, key=itemgetter(0))
    yield from takewhile(lambda change: change[0] < end - SLACK, merged)


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
