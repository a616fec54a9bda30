"""One node of a simulated fleet: what an agent reports of another machine, made this node's own.

Agents of whole simulated machines are costly, so a handful live, one for each kind of load, and
each node says what one of them does. Its names, numbers, counters, watts
and degrees are its own; its shares of time are those of the machine that it is like.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import floor
from uuid import NAMESPACE_DNS, uuid5

from agent.model import Kind, Metric, Sample
from agent.simulator.fleet_plan import NodePlan
from agent.simulator.noise import noise

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
        """The samples of a machine in this scenario as those of this node."""
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
        """Identities of the node, its GPUs and its agent."""
        if label in ("uuid", "culprit"):
            return value and f"GPU-{uuid5(NAMESPACE_DNS, f'{self.plan.name}/{value}')}"
        if label == "serial":
            return value and f"{self.plan.number:04d}{value[-9:]}"
        if label == "version" and self.plan.version:
            return self.plan.version
        return value

    def _unlike(self, metric: Metric, labels: tuple[str, ...]) -> tuple[float, float]:
        """Return the factor and the number of units by which it differs from the other machine."""
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
