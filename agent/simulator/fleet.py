"""A simulated fleet: its plan, and nodes that report what a few simulated machines do.

Agents of whole simulated machines are costly, so a handful live, one for each kind of load, and
each node reports what one of them does as its own. README.md beside this says what a node is."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import floor, inf
from typing import NamedTuple
from uuid import NAMESPACE_DNS, uuid5

from agent.errors import BadInput
from agent.model import Kind, Metric, Sample
from agent.simulator.meter import noise
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


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: where it is, what its agent reports, and what of that is its own."""

    number: int
    rack: str
    phases: Sequence[Phase]  # one after the other, and then again
    job: FleetJob | None = None
    shift: float = 0.0  # s by which it is ahead in its phases
    dark: float = inf  # its rack has no power from then on, for ten minutes of each hour (s)
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
        without_power = now >= self.dark and (now - self.dark) % 3600.0 < 600.0
        return now < self.removed and not without_power


TRAINING = "vision", (Phase("training"),)
ROLES: tuple[tuple[str, Sequence[Phase]], ...] = (
    *(TRAINING, TRAINING, ("speech", (Phase("starved-disk", 300.0), Phase("training", 900.0)))),
    *(("", (Phase("idle"),)), TRAINING, TRAINING, ("notebook", (Phase("held"),))),
    ("speech", (Phase("training", 1500.0), Phase("starved-disk", 120.0))),
    *(TRAINING, TRAINING, ("", (Phase("idle"),))),
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
    return tuple(_eventful(nodes, power_cut))


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
        together = phases == TRAINING[1]
        name = f"{5000 + (number - 1) // RACK}" if together else f"{6000 + number}"
        job = FleetJob(name, user, user) if user else None
        shift = 900.0 * (1.0 + noise(number))
        yield NodePlan(number, _rack(number), phases, job, shift)


def _eventful(nodes: Sequence[NodePlan], cut: float) -> Iterator[NodePlan]:
    joint, racks = min(JOINT, len(nodes) // 2), _rack(len(nodes))
    for node in nodes:
        place = node.number - joint
        if node.rack == racks != _rack(1):
            yield replace(node, dark=cut)
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


LIFETIME = 130
"""Ticks of a second: every scenario shows its trait within a minute, and a minute is kept."""

EVERY, KEPT = 5, 12  # Ticks from one moment that is kept to the next, and how many there are

Key = tuple[str, tuple[str, ...]]
Moment = tuple[Sample, ...]


@dataclass(slots=True, eq=False)
class FleetMachine:
    """Metrics of one simulated agent. Times are seconds of the fleet's clock."""

    ticks: int = 0
    newest: Moment = ()
    moments: list[Moment] = field(default_factory=list)  # one more than are played: the next first
    growth: dict[Key, float] = field(default_factory=dict)  # of counters, over all of them
    since: float = 0.0  # when they began to be played

    @property
    def lives(self) -> bool:
        return self.ticks < LIFETIME

    def take(self, samples: Iterable[Sample], now: float) -> None:
        self.ticks += 1
        self.newest = tuple(samples)
        if self.ticks > LIFETIME - EVERY * KEPT - 1 and (LIFETIME - self.ticks) % EVERY == 0:
            self.moments.append(self.newest)
        if not self.lives:
            first, last = (dict(_counters(m)) for m in (self.moments[0], self.moments[-1]))
            self.growth = {key: last[key] - first[key] for key in first.keys() & last.keys()}
            self.since = now

    def samples(self, now: float) -> Iterator[Sample]:
        if self.lives:
            yield from self.newest
            return
        # The moments in turn, with what counters had grown by whenever they came before. The last
        # moment that lived is the first of the next time.
        times, place = divmod(int((now - self.since) / EVERY) + KEPT, KEPT)
        for sample in self.moments[place]:
            grown = self.growth.get((sample.metric.name, sample.labels), 0.0)
            yield sample._replace(value=sample.value + times * grown) if grown else sample


def _counters(moment: Moment) -> Iterator[tuple[Key, float]]:
    for metric, labels, value in moment:
        if metric.kind is Kind.COUNTER:
            yield (metric.name, labels), value


BYTES, POWER = 0.03, 0.03
"""Differences between nodes of one job: ratio of the bytes that they move, of the watts of a
GPU."""

DEGREES = 2.0  # Differences between GPUs in temperature; a GPU cooled worse looks the same
LAST_TICK = "dgx_agent_last_tick_timestamp_seconds"
GPU_INFO, JOB_INFO = "dgx_gpu_info", "dgx_gpu_job_info"
ERRORS = ("dgx_infiniband_errors_total", ("mlx5_1", "1", "symbol_error"))


@dataclass(slots=True, eq=False)
class _OwnSeries:
    """A series of the node: counters add up what the other machine's have grown by."""

    labels: tuple[str, ...]
    factor: float
    offset: float
    rate: float  # events a second that only this node has
    whole: bool  # it counts in whole numbers
    like: str = ""  # the scenario from which `last` comes
    last: float = 0.0
    grown: float = 0.0


class SimulatedNode:
    """Metrics of the agent of one node, from the moment (s) that it has started."""

    def __init__(self, plan: NodePlan, began: float, job_info: Metric) -> None:
        self.plan = plan
        self._began = began
        self._job_info = job_info
        self._known: dict[tuple[str, tuple[str, ...]], _OwnSeries] = {}

    def samples(self, scenario: str, found: Iterable[Sample], now: float) -> Iterator[Sample]:
        for metric, labels, value in found:
            if metric.name == JOB_INFO or metric.kind is Kind.INTERNAL:
                continue
            key = metric.name, labels
            own = self._known.get(key)
            if own is None:
                own = self._known[key] = self._own(metric, labels, value)
            if metric.name == LAST_TICK:
                yield Sample(metric, labels, time.time())
            elif metric.kind is Kind.COUNTER:
                yield Sample(metric, own.labels, self._counted(own, scenario, value, now))
            else:
                yield Sample(metric, own.labels, value * own.factor + own.offset)
            if metric.name == GPU_INFO and self.plan.job:
                job = self.plan.job
                names = job.job_id, job.user, "slurm", job.partition, job.account, "", "", ""
                yield Sample(self._job_info, (*own.labels[:2], *names), 1.0)

    def _counted(self, own: _OwnSeries, scenario: str, value: float, now: float) -> float:
        """Return the count of a counter; it begins at 0 on a machine that was in another state
        before."""
        if own.like == scenario:
            own.grown += max(0.0, value - own.last) * own.factor
        own.like, own.last = scenario, value
        total = own.grown + own.rate * (now - self._began)
        return float(floor(total)) if own.whole else total

    def _own(self, metric: Metric, labels: tuple[str, ...], value: float) -> _OwnSeries:
        named = tuple(map(self._renamed, metric.labels, labels))
        factor, offset = self._unlike(metric, named)
        errors = (metric.name, labels) == ERRORS
        rate = self.plan.symbol_errors / 3600.0 if errors else 0.0
        return _OwnSeries(named, factor, offset, rate, value == floor(value) or errors)

    def _renamed(self, label: str, value: str) -> str:
        if label in ("uuid", "culprit"):
            return value and f"GPU-{uuid5(NAMESPACE_DNS, f'{self.plan.name}/{value}')}"
        if label == "serial":
            return value and f"{self.plan.number:04d}{value[-9:]}"
        if label == "version" and self.plan.version:
            return self.plan.version
        return value

    def _unlike(self, metric: Metric, labels: tuple[str, ...]) -> tuple[float, float]:
        gpu = labels[metric.labels.index("gpu")] if "gpu" in metric.labels else ""
        unlike = noise(self.plan.number, int(gpu or -1))
        name = metric.name.removesuffix("_total")
        if name in ("dgx_gpu_power_watts", "dgx_gpu_energy_joules"):
            return 1.0 + POWER * unlike, 0.0
        moved = metric.kind is Kind.COUNTER and name.endswith("_bytes")
        if moved or name == "dgx_bandwidth_ratio":
            return 1.0 + BYTES * noise(self.plan.number), 0.0
        warmer = round(DEGREES * unlike + (self.plan.warmer if gpu == "0" else 0.0))
        if name in ("dgx_gpu_temperature_celsius", "dgx_gpu_memory_temperature_celsius"):
            return 1.0, warmer
        return 1.0, -warmer if name == "dgx_gpu_temperature_margin_celsius" else 0.0
