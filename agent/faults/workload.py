"""Faults for the owner of the job: jobs that hang or slow down, GPUs that are not used, paths that
are full; and the groups of the rules on lost time."""

from collections.abc import Iterable, Iterator

from agent.diagnosis import accounting, job_watch
from agent.diagnosis.advice import ADVICE, CHECKPOINT, READ_FASTER, hang_advice
from agent.faults import places
from agent.faults.lost_time import (
    BY_MISSING,
    held_down,
    late_gpus,
    long_spans,
    of_states,
    quarter,
    single_gpus,
    starved,
    starved_records,
    stragglers,
    unnamed_time,
)
from agent.faults.model import CRITICAL, INFO, Fault, Group, gpu_fault, node_fault
from agent.faults.promql import (
    NODE,
    Condition,
    Recording,
    grown,
    increase,
    of,
    rate,
    seconds,
    spoken,
)
from agent.faults.records import (
    LONGER,
    OFTEN,
    SLOWDOWN,
    gpu_time,
    saturated,
    saturation,
    share_of_gpu,
    waits_time,
)
from agent.faults.thresholds import RuleParameters
from agent.model import Cause, State
from agent.sources import allocation, process

Rules = tuple[Fault | Recording, ...]

WAITING = "instance:dgx_gpu_hung:gpus"


def standing(parameters: RuleParameters, least: float = 0.9) -> Condition:
    """GPUs that hung for so much of a minute, or of five if a minute does not hold two scrapes."""
    grows = grown(accounting.STATE_SECONDS, "2m", "", state=State.HUNG.value) >= 54
    minute, five = (
        rate(accounting.STATE_SECONDS, parameters.over(span), state=State.HUNG)
        for span in ("1m", "5m")
    )
    return grows.made(f"({minute} or {five}) >= {least:g}", grows.rows)


def hung_record(parameters: RuleParameters) -> Recording:
    """Return the record of the number of GPUs of a machine that hang."""
    named = f"max by ({NODE}) ({job_watch.HUNG})"
    number = f"count by ({NODE}) ({standing(parameters, 0.5)})"
    return Recording(WAITING, f"{number} or on ({NODE}) {named}", held=True)


def hung(parameters: RuleParameters) -> Iterator[Fault]:
    """A job that hangs: with the process that it waits for if that is known, else by GPUs."""
    process_named = of(job_watch.HUNG).equals(1)
    yield gpu_fault(
        alert="DgxJobHung",
        kind="job_hung",
        when=process_named.made(
            f"({process_named}) * on ({NODE}) group_left () {WAITING}", process_named.rows
        ),
        severity=CRITICAL,
        hold="2m",
        summary="job hangs",
        sentence=("its job hangs: {gpus:GPU waits|GPUs wait} for process {0}",),
        figure="gpus",
        names=("pid",),
        do=hang_advice("it"),
        labels={"sign": "named"},
        state=State.HUNG,
        hidden_by=BY_MISSING,
    )
    yield node_fault(
        alert="DgxJobHung",
        kind="jobs_hung",
        when=standing(parameters)
        .count_without("gpu", "uuid", "state", "cause")
        .unless(of(job_watch.HUNG)),
        severity=CRITICAL,
        hold="2m",
        summary="job hangs",
        sentence=(
            "a job hangs: {gpus:GPU waits|GPUs wait} for one another, and none works; the process "
            "that they wait for is not known",
        ),
        figure="gpus",
        do=hang_advice(),
        labels={"sign": "unnamed"},
        state=State.HUNG,
        hidden_by=BY_MISSING,
    )


def slower(parameters: RuleParameters) -> Fault:
    """Steps that take longer than in the job's own first hour."""
    limits = parameters.thresholds
    return node_fault(
        alert="DgxJobSlower",
        kind="job_slower",
        when=LONGER.named(SLOWDOWN).max_without("gpu", "uuid") >= limits.slower_share,
        severity=INFO,
        hold=limits.slower_window,
        summary="job slower than in its first hour",
        sentence=(
            "steps take up to {share:percent} longer than in their job's own first hour "
            f"(limit {limits.slower_share:.0%} for {spoken(limits.slower_window)})",
        ),
        figure="share",
        unit="ratio",
        do="See when it slowed down (/api/v1/jobs), and what changed then on the board DGX GPU of "
        "Grafana.",
    )


def unused(parameters: RuleParameters) -> Fault:
    """A job was given a GPU and uses it with no process, listed or not."""
    window = parameters.thresholds.unused_window
    over = parameters.over("5m")
    text = increase(accounting.STATE_SECONDS, over, state=State.BUSY)
    busy = grown(accounting.STATE_SECONDS, "5m", text, state=State.BUSY.value)
    busy = busy >= 0.1 * seconds(over)
    free = (of(process.PROCESSES) < 1).unless(busy, "gpu", "uuid")
    return gpu_fault(
        alert="DgxGpuAllocatedUnused",
        kind="gpu_unused",
        when=free.having(of(allocation.ALLOCATED) > 0, "gpu", "uuid"),
        severity=INFO,
        hold=window,
        summary="its job does not use it",
        sentence=(f"it is given to a job that has had no process on it for {spoken(window)}",),
        do="Nothing is broken: ask the owner of the job to request fewer GPUs.",
    )


CURES = {
    "nvlink": ADVICE[State.COMMUNICATING, Cause.NVLINK],
    "pcie": ADVICE[State.STARVED, Cause.PCIE],
    "infiniband": ADVICE[State.COMMUNICATING, Cause.INFINIBAND],
    "network": ADVICE[State.STARVED, Cause.NETWORK],
}
OF_DISK = {
    "read": READ_FASTER,
    "write": CHECKPOINT,
    "busy|total": ADVICE[State.STARVED, Cause.DISK],
}


def full_paths(parameters: RuleParameters) -> Iterator[Fault]:
    """A wire or a disk is full. NVLink counts only if communication takes time, because an
    all-reduce behind the kernels costs nothing; all links of a GPU count together."""
    limits = parameters.thresholds
    share, window, record = limits.saturated_share, limits.saturated_window, saturation(parameters)
    sending = {"state": State.COMMUNICATING.value, "cause": Cause.NVLINK.value}
    sends = share_of_gpu(parameters, limits.starved_window, **sending)
    sent = sends.named(gpu_time(parameters), **sending) >= limits.starved_hours_share
    for path, do in CURES.items():
        device = {"device": "!~.+:.+"} if path == "nvlink" else {}
        labels = {"path": path, **device}
        full = saturated(parameters, **labels).named(record, **labels) >= share
        if path == "nvlink":
            full = full.having(sent, "gpu", "uuid")
        yield _full(path, full, do, (share, window))
    for direction, do in OF_DISK.items():
        labels = {"path": "disk", "direction": f"=~{direction}" if "|" in direction else direction}
        full = saturated(parameters, **labels).named(record, **labels) >= share
        yield _full(direction, full, do, (share, window))


def _full(sign: str, when: Condition, do: str, limit: tuple[float, str]) -> Fault:
    share, window = limit
    of_disk = sign in OF_DISK
    return Fault(
        alert="DgxDiskSaturated" if of_disk else "DgxLinkSaturated",
        kind=f"disk_{sign.partition('|')[0]}_saturated" if of_disk else f"{sign}_saturated",
        labels={"sign": sign.partition("|")[2] or sign},
        place=places.PATH,
        when=when,
        hold="1m",
        summary="at its limit",
        sentence=(
            places.PATHS.get(sign, "disk"),
            " {device}",
            " ({1})" * (not sign.startswith("busy")),
            f" was at its limit for {{share:percent}} of the last {spoken(window)} "
            f"(limit {share:.0%})",
        ),
        figure="share",
        unit="ratio",
        device="device",
        names=("path", "direction"),
        do=do,
    )


def workload_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    """Return all faults of this kind: findings and alerts."""
    short, (hours, day) = quarter(parameters), long_spans(parameters)
    return (
        *starved(parameters, short),
        *starved(parameters, hours),
        *starved(parameters, day),
        *of_states(parameters),
        *held_down(parameters),
        *late_gpus(parameters, short),
        *late_gpus(parameters, hours),
        *stragglers(parameters, short),
        *stragglers(parameters, hours),
        *hung(parameters),
        slower(parameters),
        unused(parameters),
        *full_paths(parameters),
    )


def _rules(faults: Iterable[Fault]) -> Iterator[Fault]:
    return (fault for fault in faults if fault.when)


def lost_time(parameters: RuleParameters) -> Group:
    """Return the rules on the time that GPUs lose within a quarter of an hour."""
    short = quarter(parameters)
    held = gpu_time(parameters, parameters.thresholds.throttled_window)
    rules: Rules = (
        *starved_records(parameters, short),
        *(() if held.record == short.record.record else (held,)),
        *_rules(starved(parameters, short)),
        *of_states(parameters),
        *held_down(parameters),
    )
    return Group("dgx-lost-time", rules, "Work: time that the GPUs lose", every=OFTEN)


def lost_hours(parameters: RuleParameters) -> Group:
    """Return the rules on time lost over hours: they do not read a day of samples every 15 s."""
    hours, day = long_spans(parameters)
    rules: Rules = (
        *starved_records(parameters, hours),
        *starved_records(parameters, day),
        *_rules(starved(parameters, hours)),
        *_rules(starved(parameters, day)),
    )
    return Group("dgx-lost-hours", rules, every="2m")


def jobs(parameters: RuleParameters) -> Group:
    """Return the rules on jobs that hang, slow down, or wait for one GPU of theirs."""
    short, (hours, _) = quarter(parameters), long_spans(parameters)
    rules: Rules = (
        waits_time(parameters, short.window),
        waits_time(parameters, hours.window),
        unnamed_time(parameters, short),
        unnamed_time(parameters, hours),
        single_gpus(parameters),
        SLOWDOWN,
        hung_record(parameters),
        *stragglers(parameters, short),
        *stragglers(parameters, hours),
        *hung(parameters),
        slower(parameters),
        unused(parameters),
    )
    return Group("dgx-jobs", rules, every=OFTEN)


def paths_group(parameters: RuleParameters) -> Group:
    """Return the rules on data paths at their limit."""
    rules: Rules = (saturation(parameters), *full_paths(parameters))
    return Group("dgx-paths", rules, every=OFTEN)


WORKLOAD = (lost_time, lost_hours, jobs, paths_group)
