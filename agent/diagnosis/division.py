"""Divides the time of a GPU into shares by state and cause."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from agent.diagnosis.active_share import LEAST_WAIT, ActiveShares, in_lock_step, not_computing
from agent.diagnosis.confidence import Likeness, similar
from agent.diagnosis.copies import copies_alone, launch_overhead
from agent.diagnosis.evidence import SPINNING_POWER, Evidence
from agent.diagnosis.facts import COUNT, SECONDS, FactKind, Found, ratio, traffic
from agent.diagnosis.hang import hung, late_gpus
from agent.diagnosis.inactive_share import (
    FACTS,
    Share,
    Shares,
    awaited,
    divide_inactive,
    no_requests,
    serves,
)
from agent.diagnosis.tick_context import PathUse
from agent.model import BUSY, Cause, Fact, Figure, GpuKey, Pair, SignalQuality, State
from agent.sources import temperature

IDLE: Pair = (State.IDLE, Cause.NONE)
REQUESTS: Pair = (State.IDLE, Cause.REQUESTS)
HELD: Pair = (State.HELD, Cause.NONE)
HUNG: Pair = (State.HUNG, Cause.NONE)
PEER: Pair = (State.STARVED, Cause.PEER)

WAITS = Cause.CPU, Cause.DISK, Cause.NETWORK
"""Causes for which a thread waits before it launches, so that its launches are not late."""

THERMAL = ("software_thermal", "hardware_thermal")
REASONS: tuple[tuple[Cause, FactKind, tuple[str, ...]], ...] = (
    (Cause.THERMAL, FactKind.THERMAL_SLOWDOWN, THERMAL),
    (Cause.POWER, FactKind.POWER_BRAKE, ("power_brake",)),
    (Cause.POWER, FactKind.POWER_CAP, ("power_cap",)),
    (Cause.RELIABILITY, FactKind.VOLTAGE_LIMIT, ("reliability",)),
)
"""Reasons for low clocks, most serious first. The first that applies determines the cause."""


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """A GPU's time shares by state and cause, which sum to 1, and the facts that support each
    share. `waits_for` is the GPU of the same job that this GPU waits for."""

    parts: dict[Pair, float]
    found: dict[Pair, Found] = field(default_factory=dict)
    waits_for: GpuKey | None = None


def divide_second(e: Evidence) -> TimeSplit:
    """Return a GPU's time shares by state and cause in this tick. Its activity must be known."""
    found = without_process(e)
    if found is None and (stands := hung(e)) is not None:  # false: waits for a rank on another host
        pair = HUNG if stands[0] else PEER
        found = TimeSplit({pair: 1.0}, {pair: stands[1]})
    return found or held(e) or _with_work(e)


def without_process(e: Evidence) -> TimeSplit | None:
    """Return the time shares of a GPU without a process, or None if it has one. Activity without a
    visible process (graphics, or a process in another PID namespace) counts as busy time."""
    if (e.processes is None and not e.is_quiet) or e.processes:
        return None
    active = e.activity or 0.0
    kind = FactKind.NO_PROCESS if e.processes == 0 else FactKind.AT_REST
    rests: Found = (Fact(kind),)
    if active < e.context.thresholds.quiet:
        return TimeSplit({IDLE: 1.0}, {IDLE: rests})
    works = Fact(FactKind.WITHOUT_PROCESS, (ratio("activity", active),))
    found = {BUSY: (works,), IDLE: rests}
    return TimeSplit({BUSY: active, IDLE: 1.0 - active}, found)


def held(e: Evidence) -> TimeSplit | None:
    held_after = e.context.thresholds.held_after
    if e.history.idle_for < held_after:
        return None
    if serves(e):
        return TimeSplit({REQUESTS: 1.0}, {REQUESTS: no_requests(e)})
    there = () if e.processes is None else (Figure("processes", e.processes, None, COUNT),)
    quiet_for = Figure("quiet_for", e.history.idle_for, held_after, SECONDS)
    holding = Fact(FactKind.HOLDING, (*there, quiet_for))
    return TimeSplit({HELD: 1.0}, {HELD: (holding,)})


def _with_work(e: Evidence) -> TimeSplit:
    active = min(1.0, e.activity or 0.0)
    if copies := host_copies(e):
        return _with_copies(e, active, copies)
    found: dict[Pair, Found] = {}
    parts: dict[Pair, float] = {}
    shares = _active(e)
    scale = active / shares.total if shares.total else 0.0
    own = shares.busy * scale
    transfers, waiting = shares.communicating * scale, shares.waiting * scale
    if transfers:
        pair, facts = communicates(e)
        parts[pair], found[pair] = transfers, facts
    inactive = _inactive(e, 1.0 - active + shares.late * scale)
    waiting += _not_late(inactive, shares.late * scale)
    elsewhere = communicates_elsewhere(e) if waiting and shares.waits_for is None else None
    if elsewhere is not None:
        pair, facts = elsewhere
        parts[pair] = parts.get(pair, 0.0) + waiting
        found[pair] = facts
        waiting = 0.0
    waits_for = shares.waits_for if waiting else None
    if waiting:
        parts[PEER] = waiting
        found[PEER] = tuple(waits_for_peer(e, shares))
    for pair, share, facts in throttled(e, own):
        own -= share
        parts[pair], found[pair] = share, facts
    if waits_for is None and Cause.PEER in inactive and (peer := awaited(e)) is not None:
        waits_for = peer.gpu
    for cause, (share, facts) in inactive.items():
        pair, launching = _pair(cause), 0.0
        if cause is Cause.HOST_THREAD:
            launching = min(own, launch_overhead(e, share))
        own -= launching
        parts[pair] = parts.get(pair, 0.0) + share + launching
        found.setdefault(pair, facts)
    found[BUSY], parts[BUSY] = own_work(e), own
    _move_copies(e, parts, found)
    return TimeSplit(parts, found, waits_for)


def _move_copies(e: Evidence, parts: dict[Pair, float], found: dict[Pair, Found]) -> None:
    """Move the time of PCIe copies, which is active time without GPM, from `busy` to PCIe."""
    if copied := min(parts[BUSY], copies_alone(e)):
        pair = _pair(Cause.PCIE)
        parts[BUSY] -= copied
        parts[pair] = parts.get(pair, 0.0) + copied
        found.setdefault(pair, FACTS[Cause.PCIE](e))


def _pair(cause: Cause) -> Pair:
    """Return the state and cause of a GPU that is inactive because of `cause`. The state is `idle`
    for a server without requests, and otherwise `starved`."""
    return REQUESTS if cause is Cause.REQUESTS else (State.STARVED, cause)


def _inactive(e: Evidence, inactive: float) -> Shares:
    """Return the shares of inactive time by cause, in the same proportions as in the last 6 s."""
    shares = divide_inactive(e) if inactive > 0 else {}
    whole = sum(share.seconds for share in shares.values())
    if not whole:
        cause = Cause.UNKNOWN if e.host.launching is None else Cause.HOST_THREAD
        return {cause: Share(inactive, FACTS[cause](e))} if inactive > 0 else {}
    found = {
        cause: Share(inactive * share.seconds / whole, share.facts)
        for cause, share in shares.items()
    }
    for cause in list(found):  # unknown if, in trials, most of this time had another cause
        if not similar(Likeness(e.quality, bool(e.peers), _pair(cause))).is_doubtful:
            continue
        share = found.pop(cause)
        unknown = found.get(Cause.UNKNOWN, Share(0.0, share.facts))
        found[Cause.UNKNOWN] = Share(unknown.seconds + share.seconds, unknown.facts)
    return found


def _not_late(inactive: Shares, late: float) -> float:
    """Return the part of `late` in which threads wait, and take it from the waits in `inactive`."""
    whole, before = sum(share.seconds for share in inactive.values()), 0.0
    part = late / whole if late else 0.0
    for cause in filter(inactive.__contains__, WAITS):
        seconds, facts = inactive[cause]
        inactive[cause] = Share(seconds * (1.0 - part), facts)
        before += seconds * part
    return before


def _with_copies(e: Evidence, active: float, copies: Found) -> TimeSplit:
    pair = State.STARVED, Cause.PCIE
    lost, levels = 1.0 - active, e.history.power
    if e.quality is SignalQuality.NVML:  # utilization includes copies, but power drops between them
        lost = levels.lower_share if levels is not None and levels.distinct else 1.0
    found = {pair: copies, BUSY: own_work(e)}
    return TimeSplit({pair: lost, BUSY: 1.0 - lost}, found)


def own_work(e: Evidence) -> Found:
    """Return the facts about the GPU's own work. If a user lowered the clocks, a fact about this is
    included, but no time counts as lost."""
    facts: Found = (Fact(FactKind.ACTIVE, (ratio("activity", e.mean_activity),)),)
    limits = e.context.thresholds
    low = e.clock is not None and e.clock < limits.clock_low
    if low and e.clocks_set >= limits.throttled:
        facts += (Fact(FactKind.CLOCKS_SET, (ratio("sm_clock", e.clock or 0.0),)),)
    return facts


def _active(e: Evidence) -> ActiveShares:
    """Return the time shares of an active GPU: work, communication, and waits for a peer."""
    if (shares := _only_spinning(e)) is not None:
        return shares
    if e.quality is SignalQuality.NVML:
        return _active_without_gpm(e)
    shares = e.by_links
    if shares.waiting or shares.communicating or e.joined:
        return shares
    without_work = not_computing(e.second) if communicates_elsewhere(e) is not None else 0.0
    return ActiveShares(shares.busy - without_work, 0.0, without_work)


def _only_spinning(e: Evidence) -> ActiveShares | None:
    """Return the time shares of a GPU whose kernels only spin, while another GPU of its job waits
    too: it waits for the one GPU that is late, if that is clear. Otherwise, return None."""
    together = e.quality is SignalQuality.NVML or e.has_ranks  # small kernels seem to spin with GPM
    waits = (peer.spins or peer.history.waits_for for peer in e.peers)
    if not (e.spins and together and any(waits)):
        return None
    late = [*late_gpus({one.gpu: one.history.rank for one in (e, *e.peers)})]
    waits_for = late[0] if len(late) == 1 and late != [e.gpu] else e.by_links.waits_for
    return ActiveShares(0.0, 0.0, e.second.activity, waits_for)


def _active_without_gpm(e: Evidence) -> ActiveShares:
    """Return the time shares of an active GPU, based on power and NVLink traffic. NVML's
    utilization includes spinning and copies. A GPU only waits or copies while its power is at the
    lower of two levels, or much lower than that of another GPU of its job."""
    shares = e.by_links
    over_nvlink = shares.communicating >= LEAST_WAIT and communicates_elsewhere(e) is None
    if shares.waiting or over_nvlink or not e.looks_busy or not e.peers:
        return shares
    return _by_power(e) or shares


def _by_power(e: Evidence) -> ActiveShares | None:
    """Return the time shares of an active GPU that draws less power than a lockstep peer. Return
    None if the power readings are inconclusive."""
    second, limits = e.second, e.context.thresholds
    payload = e.nvlink.ratio if e.nvlink is not None else 0.0
    carries = payload >= limits.communicating or communicates_elsewhere(e) is not None
    if e.sm_underutilised and carries:
        return ActiveShares(0.0, second.activity, 0.0)
    best = max(e.peers, key=lambda peer: peer.work or 0.0)
    is_read = None not in {second.sent, best.second.sent}  # whether NVLink can be read
    if not e.history.nvlink_seen or (is_read and not in_lock_step(second, best.second)):
        return None
    behind, works = (best.work or 0.0) - (e.work or 1.0), (best.work or 0.0) - SPINNING_POWER
    if behind < limits.behind or works <= 0 or not best.looks_busy:
        return None
    waited = min(second.activity, behind / works)
    return ActiveShares(second.activity - waited, 0.0, waited, best.gpu)


def host_copies(e: Evidence) -> Found:
    """Return the facts that show that copies between host and GPU saturate PCIe while the GPU does
    almost no computation. The result is empty if this is not the case."""
    wire = e.fullest("pcie")
    if wire is None or not e.sm_underutilised or e.pcie_peer_traffic:
        return ()
    uplink = e.context.shared_uplink(e.gpu, wire.direction)
    has_part = wire.ratio >= e.context.thresholds.communicating
    if uplink is not None and uplink.ratio >= e.context.bandwidth.threshold("pcie") and has_part:
        figures = (traffic("traffic", uplink.ratio, uplink.limit),)
        return Fact(FactKind.UPLINK_FULL, figures, (uplink.device,)), _work(e)
    if e.share_of_slot(wire) < e.context.bandwidth.threshold("pcie"):
        return ()
    return *FACTS[Cause.PCIE](e), _work(e)


def communicates(e: Evidence) -> tuple[Pair, Found]:
    """Return the state and cause of a GPU that only transfers data, with its facts."""
    pair, wire = (State.COMMUNICATING, Cause.NVLINK), e.nvlink
    other = communicates_elsewhere(e)
    if other is not None and (wire is None or wire.ratio < e.context.thresholds.communicating):
        return other
    if wire is None:
        return pair, (_work(e),)
    figures = traffic("traffic", wire.ratio, wire.limit), ratio("share", wire.ratio)
    return pair, (Fact(FactKind.NVLINK_TRAFFIC, figures, (wire.direction,)), _work(e))


def communicates_elsewhere(e: Evidence) -> tuple[Pair, Found] | None:
    """Return the cause and facts if a waiting GPU exchanges data over PCIe with other GPUs, or if
    the host transfers data over InfiniBand in both directions (ports do not belong to one GPU).
    Reads from storage transfer data in one direction only, while the GPU is inactive."""
    least = e.context.thresholds.communicating
    if e.pcie_peer_traffic:
        wire = e.fullest("pcie")
        if wire is not None and wire.ratio >= least:
            figures = traffic("traffic", wire.ratio, wire.limit), ratio("share", wire.ratio, least)
            fact = Fact(FactKind.PEER_PCIE_TRAFFIC, figures, (wire.direction,))
            return (State.COMMUNICATING, Cause.PCIE), (fact, _work(e))
    ports: dict[str, list[PathUse]] = {}
    for port in e.context.path_usage("infiniband"):
        ports.setdefault(port.device, []).append(port)
    both = [min(ways, key=lambda w: w.ratio) for ways in ports.values() if len(ways) > 1]
    wire = max(both, key=lambda w: w.ratio, default=None)
    if wire is None or wire.ratio < least or not e.looks_busy:
        return None
    figures = traffic("traffic", wire.ratio, wire.limit), ratio("share", wire.ratio, least)
    fact = Fact(FactKind.INFINIBAND_TRAFFIC, figures, (wire.direction, wire.device))
    return (State.COMMUNICATING, Cause.INFINIBAND), (fact, _work(e))


def waits_for_peer(e: Evidence, shares: ActiveShares) -> Iterator[Fact]:
    """Yield facts that show that the GPU's kernels spin while they wait for another GPU."""
    peer = next((p for p in e.peers if p.gpu == shares.waits_for), None)
    if peer is not None and peer.mean_activity < e.mean_activity - LEAST_WAIT:
        yield Fact(FactKind.SLOW_PEER, (ratio("peer_activity", peer.mean_activity),), gpu=peer.gpu)
    elif peer is not None:
        name = "sm" if e.quality is SignalQuality.GPM else "power"
        figures = ratio(name, e.work or 0.0), ratio(f"peer_{name}", peer.work or 0.0)
        yield Fact(FactKind.BUSIER_PEER, figures, gpu=peer.gpu)
    yield _work(e)


def throttled(e: Evidence, own: float) -> Iterator[tuple[Pair, float, Found]]:
    """Yield the share of time that a GPU loses to low clocks, with its cause and facts. The
    share is that of the GPU's own work (`own`) multiplied by the relative clock reduction."""
    if e.clock is None or not e.clock_reference:
        return
    lost = max(0.0, 1.0 - e.clock / e.clock_reference)
    for cause, kind, reasons in REASONS:
        time = e.throttled(*reasons)
        if kind is FactKind.THERMAL_SLOWDOWN and not e.throttled("power_brake"):
            time = max(time, e.throttled("hardware_slowdown"))  # a power brake also sets this bit
        if time < e.context.thresholds.throttled:
            continue
        if kind is FactKind.POWER_CAP and not e.limit_lowered:
            continue  # a power cap at the board's default limit is normal
        figures = [ratio("time", time), ratio("sm_clock", e.clock, e.clock_reference)]
        if kind is FactKind.THERMAL_SLOWDOWN:
            figures += temperature.core_and_limit(e.context.samples, e.labels)
        yield (State.THROTTLED, cause), own * lost, (Fact(kind, tuple(figures)),)
        return


def _work(e: Evidence) -> Fact:
    """Return a fact about the amount of real work: SM activity or, without GPM, power."""
    work, limits = e.work or 0.0, e.context.thresholds
    if e.quality is SignalQuality.GPM:
        return Fact(FactKind.SM_ACTIVITY, (ratio("sm", work, limits.sm_low),))
    return Fact(FactKind.POWER_DRAW, (ratio("power", work, limits.power_low),))
