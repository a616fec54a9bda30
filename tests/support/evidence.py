"""Evidence from figures: one GPU (or several of a job) as its readings would show it."""

from collections.abc import Mapping

from agent.config.settings import Configuration
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.tick_context import GpuHistory, LastTick, TickContext
from agent.jobs.grouping import JobMember, groups
from agent.limits.paths import PathAccount, PathAccounts
from agent.limits.resolution import PathKey
from agent.model import GpuKey, Metric, Reading, ReadKey, Sample
from agent.series import SampleStore
from agent.sources import activity, host, workload
from agent.specs.sheets import Limit

NOW = 100.0
Labels = tuple[str, ...]
KEY = GpuKey(0, "GPU-0")
GPU = KEY.labels

Figures = Mapping[tuple[Metric, Labels], float]
Wires = Mapping[tuple[str, str, Labels, str], tuple[float, float]]

QUIET = dict.fromkeys(
    (activity.ACTIVITY, activity.SM_ACTIVE, activity.TENSOR_ACTIVE, activity.MEMORY_BANDWIDTH), 0.0
)


def grows(metric: Metric) -> bool:
    """Return whether it counts up: counters, and the data kept of the host's disks and the job's
    own cgroup and network."""
    counted = (workload.CGROUP_READ, workload.CGROUP_WRITTEN, workload.THREADS)
    return metric.name.endswith("_total") or metric in (
        *counted,
        workload.CGROUP_STALLED,
        workload.RECEIVED,
        workload.SOCKETS,
        workload.PROCESS_BYTES,
        host.IO_WAIT,
    )


def threads(gpu: Labels, cores: float) -> Figures:
    """Return the figures of a GPU's processes whose launching threads use so many cores, and do no
    more."""
    figures = {
        (workload.THREADS, (*gpu, role, doing)): 0.0
        for role in workload.ROLES
        for doing in workload.DOING
    }
    return {**figures, (workload.THREADS, (*gpu, "launching", "running")): cores}


def store(figures: Figures, seconds: int = 5) -> SampleStore:
    """Every figure read once a second; a counter grows by its figure every second."""
    kept = SampleStore()
    for tick in range(seconds + 1):
        at = NOW - seconds + tick
        samples = tuple(
            Sample(metric, labels, value * (tick if grows(metric) else 1))
            for (metric, labels), value in figures.items()
        )
        kept.take(at, [Reading(ReadKey("process", "all"), at, 1.0, samples)])
    return kept


def bandwidth(wires: Wires) -> PathAccounts:
    """Wires by path, device, GPU labels and direction: their ratio and limit (bytes a second)."""
    found = PathAccounts(Configuration())
    limits = {}
    for (path, device, gpu, direction), (ratio, limit) in wires.items():
        index, uuid = gpu or ("", "")
        key = PathKey(path, device, index, uuid, direction)
        limits[key] = Limit(limit, "spec", "test")
        found.paths[key] = PathAccount(NOW, 0.0, NOW + 3, ratio)
    found.limits = limits
    return found


def evidence(
    figures: Figures,
    wires: Wires | None = None,
    history: GpuHistory | None = None,
    thresholds: Thresholds | None = None,
    others: Mapping[GpuKey, GpuHistory] | None = None,
    *,
    last: LastTick | None = None,
) -> Evidence:
    """Return the evidence of the first GPU; `others` are the GPUs beside it with their history."""
    samples, paths, limits = store(figures), bandwidth(wires or {}), thresholds or Thresholds()
    jobs = groups(
        JobMember(GpuKey(int(job["gpu"]), job["uuid"]), pid, job["key"])
        for pid, job in enumerate(samples.labelled(workload.JOB_PIDS))
    )
    context = TickContext(samples, paths, limits, jobs, last or LastTick())
    seen: dict[GpuKey, Evidence] = {}
    for gpu, its in {KEY: history or GpuHistory(), **(others or {})}.items():
        seen[gpu] = Evidence(gpu, context, its, seen)
    return seen[KEY]
