"""The table of verdicts: the first rule that finds its evidence wins. A pure function."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from agent.diagnosis.evidence import Evidence
from agent.diagnosis.scene import Disk, Wire
from agent.diagnosis.verdict import Cause, Grade, State, Verdict
from agent.diagnosis.words import carried, gigabytes, percent, processes

Found = tuple[str, ...]
"""What speaks for a verdict, in words; empty where nothing does."""

NOTHING: Found = ()


# Rows 1 and 2: nobody there, or nobody at work


def nobody(e: Evidence) -> Found:
    if e.processes is None and e.is_quiet:
        return ("nothing moves on it; its processes are not known",)
    return ("no compute process is on it",) if e.processes == 0 else NOTHING


def holding(e: Evidence) -> Found:
    if e.past.quiet_for < e.scene.thresholds.held_after:
        return NOTHING
    there = "a process" if e.processes is None else processes(e.processes)
    return (f"{there} on it, and nothing has moved for {e.past.quiet_for:.0f} s",)


# Row 3: the clocks are held down


def _slowdown(e: Evidence, what: str, *reasons: str) -> Found:
    share = e.throttled(*reasons)
    if share < e.scene.thresholds.throttled:
        return NOTHING
    at = "" if e.clock is None else f", SM clock at {percent(e.clock)} of its maximum"
    return (f"{what} for {percent(share)} of the time{at}",)


def too_hot(e: Evidence) -> Found:
    braked = e.throttled("power_brake") >= e.scene.thresholds.throttled
    unnamed = () if braked else ("hardware_slowdown",)  # the brake sets this bit too
    return _slowdown(e, "thermal slowdown", "software_thermal", "hardware_thermal", *unnamed)


def short_of_power(e: Evidence) -> Found:
    brake = _slowdown(e, "power brake", "power_brake")
    if brake or e.clock is None or e.clock >= e.scene.thresholds.clock_low or e.draws_its_fill:
        return brake  # the power cap alone is health at high clocks, and at full power
    return _slowdown(e, "power cap", "power_cap")


def unreliable(e: Evidence) -> Found:
    return _slowdown(e, "reliability voltage limit", "reliability")


# Rows 4 and 5: the wires


def host_copies(e: Evidence) -> Found:
    wire = e.fullest("pcie")
    full = wire is not None and wire.ratio >= e.scene.saturation("pcie")
    if wire is None or not full or not e.works_little or e.copies_to_mates:
        return NOTHING
    way = "from" if wire.direction == "transmit" else "to"
    return (f"copies {way} the GPU fill PCIe: {carried(wire.ratio, wire.limit)}", _work(e))


def _talking(e: Evidence, wire: Wire | None, name: str) -> Found:
    if wire is None or wire.ratio < e.scene.thresholds.communicating or not e.works_little:
        return NOTHING
    moved = carried(wire.ratio, wire.limit)
    return (f"{name} carries {moved} ({percent(wire.ratio)}, {wire.direction})", _work(e))


def over_nvlink(e: Evidence) -> Found:
    return _talking(e, e.nvlink, "NVLink")


def over_infiniband(e: Evidence) -> Found:
    """The ports belong to no GPU: one that spins while data goes both ways takes part.

    Reads from storage come one way, and leave the GPU's engines idle.
    """
    if not e.looks_busy:
        return NOTHING
    ports: dict[str, list[Wire]] = {}
    for wire in e.scene.wires("infiniband"):
        ports.setdefault(wire.device, []).append(wire)
    both = [min(ways, key=lambda w: w.ratio) for ways in ports.values() if len(ways) > 1]
    fullest = max(both, key=lambda w: w.ratio, default=None)
    return _talking(e, fullest, f"InfiniBand {fullest.device}" if fullest else "")


def over_pcie(e: Evidence) -> Found:
    return _talking(e, e.fullest("pcie"), "PCIe, between GPUs,") if e.copies_to_mates else NOTHING


# Rows 6 and 7: a GPU that looks busy


def spinning(e: Evidence) -> Found:
    """Its kernels do next to nothing: they wait for a GPU that does more, or that comes late."""
    if not e.looks_busy or e.work is None or not e.past.talked:
        return NOTHING
    best, limits = e.best_mate, e.scene.thresholds
    if best is None or best.work is None:
        return NOTHING
    if best.looks_busy and best.work - e.work >= limits.behind:
        return (f"it waits for GPU {best.gpu[0]}, which does more: {_versus(e, best)}",)
    held_after = limits.held_after  # a context that does nothing is nobody to wait for
    late = (m for m in e.mates if not m.looks_busy and m.past.quiet_for < held_after)
    slow = next((m for m in late if m.activity is not None and m.processes != 0), None)
    if slow is None or not e.works_little:
        return NOTHING
    whom = f"GPU {slow.gpu[0]} of the same job is active {percent(slow.mean_activity)}"
    return (f"it waits for a slow peer: {whom} of the time", _work(e))


def lost_by_spinning(e: Evidence) -> float:
    """What the best of the job's busy GPUs does beyond this one."""
    busy = [m for m in e.mates if m.looks_busy and not m.works_little]
    best = max((m.work or 0.0 for m in busy), default=0.0)
    work = min(1.0, e.work or 0.0)
    return max(0.0, 1 - work / best) if best else 1 - work


def at_work(e: Evidence) -> Found:
    return (f"active {percent(e.mean_activity)} of the time",) if e.looks_busy else NOTHING


# Rows 8 to 12: a GPU that waits. What its own processes show comes before what the host shows.


def loaders_wait_for_disk(e: Evidence) -> Found:
    active = e.scene.active_disk(written=not e.loaders)  # loaders do not write
    return (_disk(active), _asleep(e)) if _waits(e) and active else NOTHING


def loaders_wait_for_network(e: Evidence) -> Found:
    local = e.scene.active_disk(written=not e.loaders)
    if not _waits(e) or local or not e.scene.network_mounts:
        return NOTHING
    mounts = ", ".join(e.scene.network_mounts)
    full = _received(e)
    return (*full, _asleep(e), f"local disks are quiet, {mounts} is mounted")


def loaders_run(e: Evidence) -> Found:
    if not e.loaders or e.running is None or e.running < e.scene.thresholds.running:
        return NOTHING
    who = processes(e.loaders, "loader ")
    return (f"{who} running {percent(e.running)} of the time: too few, or too slow",)


def cores_used_up(e: Evidence) -> Found:
    limit, host = e.scene.thresholds.cores_busy, e.scene.cpu_busy
    if host is not None and host >= limit and e.takes_part:
        return (f"{percent(host)} of the host's cores are busy",)
    if e.cores is not None and e.allowed_cores and e.cores / e.allowed_cores >= limit:
        return (f"the job uses {e.cores:.1f} of the {e.allowed_cores:g} cores that it may use",)
    return NOTHING


def disk_at_limit(e: Evidence) -> Found:
    """What the host shows: it is not known who reads."""
    if not e.takes_part:
        return NOTHING
    full = [
        d
        for d in e.scene.disks
        if d.wire is not None and d.wire.ratio >= e.scene.saturation("disk")
    ]
    waits = e.scene.pressure("io")
    pressed = waits is not None and waits >= e.scene.thresholds.io_pressure
    if full:
        return (_disk(full[0]),)
    active = e.scene.active_disk(written=False)
    if not pressed or active is None:
        return NOTHING
    return (f"tasks wait for I/O {percent(waits or 0.0)} of the time", _disk(active))


def network_at_limit(e: Evidence) -> Found:
    return _received(e) if e.takes_part else NOTHING


def cpu_pressed(e: Evidence) -> Found:
    share = e.scene.pressure("cpu")
    if share is None or share < e.scene.thresholds.cpu_pressure or not e.takes_part:
        return NOTHING
    return (f"tasks wait for a core {percent(share)} of the time",)


def behind_a_mate(e: Evidence) -> Found:
    """It waits without spinning, for a GPU that really works."""
    best = e.best_mate if e.past.talked else None
    if best is None or best.work is None or e.work is None or not best.looks_busy:
        return NOTHING
    if best.works_little or best.work - e.work < e.scene.thresholds.behind:
        return NOTHING
    return (f"it waits for GPU {best.gpu[0]} of the same job: {_versus(e, best)}",)


def one_thread(e: Evidence) -> Found:
    limits = e.scene.thresholds
    if e.launcher_cores is None:
        return NOTHING
    if not limits.thread_least <= e.launcher_cores <= limits.thread_most:
        return NOTHING
    used = f"the process that launches its work uses {e.launcher_cores:.2f} cores"
    return (f"{used}, one after the other, while other cores are free",)


def nothing_explains(e: Evidence) -> Found:
    """What is left; a process that has just come to rest is not held yet."""
    if e.is_quiet:
        return (f"nothing moves; after {e.scene.thresholds.held_after:.0f} s of that it is held",)
    return (f"active {percent(e.mean_activity)} of the time, and nothing seen explains it",)


def _work(e: Evidence) -> str:
    name = "SM activity" if e.grade is Grade.GPM else "power, of its limit,"
    return f"{name} {percent(e.work or 0.0)}"


def _versus(e: Evidence, other: Evidence) -> str:
    return f"{_work(e)} against {percent(other.work or 0.0)}"


def _waits(e: Evidence) -> bool:
    return e.waiting is not None and e.waiting >= e.scene.thresholds.waiting


def _asleep(e: Evidence) -> str:
    share = percent(e.waiting or 0.0)
    if not e.loaders:
        return f"its process is in uninterruptible sleep {share} of the time"
    who = processes(e.loaders, "loader ")
    return f"{who} in uninterruptible sleep {share} of the time"


def _disk(disk: Disk) -> str:
    if disk.wire is not None:
        return f"{disk.device} reads {carried(disk.wire.ratio, disk.wire.limit)}"
    busy = "" if disk.busy is None else f"busy {percent(min(1.0, disk.busy))} of the time"
    if not disk.reads:
        return f"{disk.device} is {busy}, with writes"
    return ", ".join(filter(None, (f"{disk.device} reads {gigabytes(disk.reads)}", busy)))


def _received(e: Evidence) -> Found:
    wires = [
        w
        for path in ("network", "infiniband")
        for w in e.scene.wires(path)
        if w.direction == "receive" and w.ratio >= e.scene.saturation(path)
    ]
    return tuple(f"{w.device} receives {carried(w.ratio, w.limit)}" for w in wires)


def whole(_: Evidence) -> float:
    """The whole tick counts."""
    return 1.0


def inactive(e: Evidence) -> float:
    """The share of the tick in which no engine was active."""
    return max(0.0, 1.0 - (e.activity or 0.0))


def copying(e: Evidence) -> float:
    """Without GPM utilisation counts the copies that the GPU waits for: all of it is lost."""
    return inactive(e) if e.grade is Grade.GPM else 1.0


class Rule(NamedTuple):
    """A state and cause, what must be found for it, and the share of the tick that it takes."""

    state: State
    cause: Cause
    find: Callable[[Evidence], Found]
    lost: Callable[[Evidence], float] = whole


RULES = (
    Rule(State.IDLE, Cause.NONE, nobody),
    Rule(State.HELD, Cause.NONE, holding),
    Rule(State.THROTTLED, Cause.THERMAL, too_hot),
    Rule(State.THROTTLED, Cause.POWER, short_of_power),
    Rule(State.THROTTLED, Cause.RELIABILITY, unreliable),
    Rule(State.STARVED, Cause.PCIE, host_copies, copying),
    Rule(State.COMMUNICATING, Cause.NVLINK, over_nvlink),
    Rule(State.COMMUNICATING, Cause.INFINIBAND, over_infiniband),
    Rule(State.COMMUNICATING, Cause.PCIE, over_pcie),
    Rule(State.STARVED, Cause.PEER, spinning, lost_by_spinning),
    Rule(State.BUSY, Cause.NONE, at_work),
    Rule(State.STARVED, Cause.DISK, loaders_wait_for_disk, inactive),
    Rule(State.STARVED, Cause.NETWORK, loaders_wait_for_network, inactive),
    Rule(State.STARVED, Cause.CPU, loaders_run, inactive),
    Rule(State.STARVED, Cause.CPU, cores_used_up, inactive),
    Rule(State.STARVED, Cause.DISK, disk_at_limit, inactive),
    Rule(State.STARVED, Cause.NETWORK, network_at_limit, inactive),
    Rule(State.STARVED, Cause.CPU, cpu_pressed, inactive),
    Rule(State.STARVED, Cause.PEER, behind_a_mate, inactive),
    Rule(State.STARVED, Cause.HOST_THREAD, one_thread, inactive),
    Rule(State.STARVED, Cause.UNKNOWN, nothing_explains, inactive),
)


def judge(e: Evidence) -> Verdict:
    """The verdict of the first rule that finds its evidence; its activity must be known."""
    rule, found = next((rule, found) for rule in RULES if (found := rule.find(e)))
    doubts = tuple(_doubts(e)) if rule.state is State.STARVED else ()
    return Verdict(rule.state, rule.cause, e.grade, rule.lost(e), found, doubts)


def _doubts(e: Evidence) -> Iterator[str]:
    """What was asked for and could not be seen."""
    if e.hidden:
        yield f"its processes cannot be seen ({e.hidden})"
    if e.grade is Grade.NVML:
        yield "judged without GPM: utilisation counts copies and spinning too"
