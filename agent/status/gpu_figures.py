"""Current figures of the GPUs, their processes, and their MIG instances."""

from collections.abc import Mapping, Sequence

from agent.diagnosis.disclosure import SOURCES
from agent.model import Metric, Snapshot
from agent.series import SampleStore
from agent.sources import activity, clocks, memory, power, process, temperature, workload
from agent.sources import instances as mig
from agent.status.history import SETTLED
from agent.status.model import GpuFigures, InstanceStatus, ProcessStatus


def figures(gpu: tuple[str, str], samples: SampleStore) -> GpuFigures:
    """Return the current figures of the GPU with the given labels."""

    def value(metric: Metric, *labels: str, digits: int = 0) -> float | None:
        found = samples.value(metric, *gpu, *labels)
        return None if found is None else round(found, digits)

    def settled(metric: Metric, digits: int) -> float | None:
        found = samples.mean(metric, *gpu, seconds=SETTLED)
        return None if found is None else round(found, digits)

    hottest = value(temperature.LIMIT, temperature.OPERATING)
    return GpuFigures(
        activity_ratio=value(activity.ACTIVITY, digits=3),
        sm_active_ratio=value(activity.SM_ACTIVE, digits=3),
        tensor_throughput_ratio=settled(activity.TENSOR_THROUGHPUT, 3),
        memory_used_bytes=value(memory.USED),
        memory_total_bytes=value(memory.TOTAL),
        power_watts=settled(power.POWER, 1),
        power_limit_watts=value(power.POWER_LIMIT),
        temperature_celsius=value(temperature.TEMPERATURE),
        temperature_limit_celsius=value(temperature.LIMIT, temperature.SLOWDOWN)
        if hottest is None
        else hottest,
        sm_clock_hertz=value(clocks.CLOCK, "sm"),
        sm_clock_limit_hertz=value(clocks.CLOCK_LIMIT, "sm"),
    )


def largest(processes: Sequence[ProcessStatus], named: Mapping[int, str]) -> str | None:
    """Return a string such as `train:4711 ada and 2 more`: the first process, named after its job
    if known, and the number of other processes."""
    if not processes:
        return None
    first, more = processes[0], len(processes) - 1
    name = named.get(first.pid) or first.program
    text = f"{name}:{first.pid}" if name else f"pid {first.pid}"
    return " ".join(filter(None, (text, first.user, f"and {more} more" if more else "")))


OF_PROCESSES = workload.JOB_PIDS, workload.JOB_PROCESS, process.HELD, process.SHARE, process.PROGRAM


def processes(snapshot: Snapshot) -> dict[str, tuple[ProcessStatus, ...]]:
    """Return the processes on each GPU by UUID, in descending order of memory use. Programs and
    users are set only if the configuration allows it."""
    rows: dict[Metric, list[tuple[dict[str, str], float]]] = {one: [] for one in OF_PROCESSES}
    for key, reading in snapshot.readings.items():
        if key.source in SOURCES and reading.fresh(snapshot.at):
            for metric, labels, value in reading.samples:
                if metric in rows:
                    rows[metric].append((dict(zip(metric.labels, labels, strict=True)), value))
    jobs, owners, *amounts, programs = rows.values()
    users = {(job["uuid"], job["key"]): job["user"] for job, _ in jobs}
    user_of = {
        (one["uuid"], one["pid"]): users.get((one["uuid"], one["key"]))
        or (one["uid"] and f"uid {one['uid']}")
        for one, _ in owners
    }
    held, share = ({(one["uuid"], one["pid"]): value for one, value in each} for each in amounts)
    found: dict[str, list[ProcessStatus]] = {}
    for one, _ in programs:
        place = one["uuid"], one["pid"]
        entry = ProcessStatus(
            pid=int(one["pid"]),
            program=one["name"] or None,
            user=user_of.get(place) or None,
            memory_bytes=held.get(place),
            time_ratio=share.get(place),
        )
        found.setdefault(one["uuid"], []).append(entry)
    for entries in found.values():
        entries.sort(key=lambda one: (-(one.memory_bytes or 0.0), one.pid))
    return {uuid: tuple(entries) for uuid, entries in found.items()}


def instances(samples: SampleStore) -> dict[str, tuple[InstanceStatus, ...]]:
    """Return the MIG instances of each GPU, sorted by instance number. The keys are GPU UUIDs."""
    found: dict[str, list[InstanceStatus]] = {}
    for info in samples.labelled(mig.INSTANCE_INFO):
        labels = info["gpu"], info["uuid"], info["gpu_instance"]
        count = samples.value(mig.INSTANCE_PROCESSES, *labels)
        row = InstanceStatus(
            number=int(labels[2]),
            profile=info["profile"],
            uuid=info["mig_uuid"],
            activity_ratio=samples.value(mig.ACTIVITY, *labels),
            sm_active_ratio=samples.value(mig.SM_ACTIVE, *labels),
            memory_used_bytes=samples.value(mig.USED, *labels),
            memory_total_bytes=samples.value(mig.TOTAL, *labels),
            processes=None if count is None else int(count),
        )
        found.setdefault(labels[1], []).append(row)
    return {uuid: tuple(sorted(rows, key=lambda r: r.number)) for uuid, rows in found.items()}
