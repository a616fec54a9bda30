"""Divides the active time of a GPU into its own work, communication, and waits for a peer.

Utilization and graphics activity do not distinguish work from a kernel that spins in a collective.
Other metrics do, as measured on H100 and H200 GPUs. While a kernel spins, SM activity is 0.17 to
0.25, and tensor and DRAM activity are 0. Tensor and DRAM activity are proportional to the work, but
SM activity is not. The 20 ms power samples drop to a lower level while a GPU waits or only
transfers data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from agent.diagnosis.power_levels import PowerLevels
from agent.model import GpuKey

MOST_SPINNING_SM = 0.40
"""Maximum SM activity of a kernel that only spins or transfers data. On H100 and H200, it is 0.17
to 0.25 for a kernel that spins, and 0.33 for an all-gather that copies its output. A GPU whose SM
activity is close to its overall activity does not wait even at low power, because memory-bound
kernels draw half as much power as dense matrix products."""

NOTHING, LINKS_AT_REST = 0.02, 1e-5
"""NOTHING: tensor or DRAM activity below which a GPU does no work, and ratio of payload to NVLink
limit below which transfers take no time. LINKS_AT_REST: this ratio for idle links (measured: at
most 5e-7 on idle links, and 6e-5 to 1e-4 for all-reduces of a few KB)."""

WIRE_RATE = 0.78
"""Assumed ratio of NVLink wire bytes to NVLink limit while a GPU only transfers data. In 51 of 82
recorded loads, it was 0.61 to 1.0, with a median of 0.81. In 21, it was less, with small messages
or a single NCCL channel, so the agent underestimates their time. In ten, some data overlapped."""

WORKING_SM = 0.90
"""Ratio of SM activity to overall activity while a GPU computes. In training on H100 GPUs, it is
0.85 to 0.89 with concurrent communication, and 0.92 to 0.98 if work and communication alternate. A
GPU with a lower ratio is assumed to communicate, but no longer than its payload takes."""

ALWAYS = 0.90
"""Minimum activity of a GPU that spins all the time, and of a GPU that does not wait for data.
Without this threshold, the results for the recordings are the same, but a few small kernels might
be mistaken for a hang, and the step time of a job that never waits for data might be unknown."""

TRANSFERRING_SM = 0.12
"""SM activity of a kernel that moves data between GPUs. It uses 16 to 24 of 132 SMs."""

EQUAL = 0.12
"""Maximum relative difference between values that count as equal."""

MOSTLY = 0.5
"""Minimum activity at which the lower of two levels of power may be that of waiting, minimum share
of the inactive time for which copies count as its cause, and maximum share of a core that workers
of a waiting server use."""

EXPOSED = 1.5
"""Ratio of NVLink wire bytes to payload bytes below which transfers do not overlap with work. In 74
recorded loads on H100 and H200 GPUs, it was 1.2 to 1.5 for messages of at least 4 MB without
concurrent work, and 1.6 to 2.0 for gradients of any size during work."""

SMALL_MESSAGES = 2.05
"""Ratio of NVLink wire bytes to payload bytes above which messages count as small."""

SMALL_TIME = 110.0
"""Additional time that a byte takes if messages are small, as a multiple of its time at the NVLink
limit. It is multiplied by the excess of the ratio over SMALL_MESSAGES. On two H100 GPUs without
concurrent work, the ratio was 2.1 to 2.2 for 256 KB (23 to 45 GB/s), 2.3 to 2.45 for 64 KB (8 to 18
GB/s), and 2.5 to 2.6 for up to 16 KB (1 to 3 GB/s). It was 2.0 to 2.1 for pipeline stages."""

LEAST_TRANSFER, LEAST_WAIT = 0.013, 0.03
"""LEAST_TRANSFER: minimum share of time that counts as communication. LEAST_WAIT: minimum share of
time that counts as waiting for a peer."""


class WorkLevel(NamedTuple):
    """SM and DRAM activity of a GPU that does not wait, divided by its overall activity."""

    sm: float
    dram: float


def work_level(seen: Iterable[WorkLevel]) -> WorkLevel | None:
    """Return the SM and DRAM activity of a GPU that works without waiting, from the 100 ms windows
    in `seen`: the second-highest SM activity, because the highest may be an outlier, and the mean
    DRAM activity in windows with similar SM activity. Return None for fewer than two windows."""
    by_sm = sorted(seen, reverse=True)[1:]
    if not by_sm:
        return None
    full = by_sm[0].sm
    alike = [one.dram for one in by_sm if one.sm >= (1.0 - LEAST_WAIT) * full]
    return WorkLevel(full, fmean(alike))


@dataclass(frozen=True, slots=True)
class ActiveSecond:
    """Metrics of a GPU, averaged over the last 6 s. Values are shares (0-1), or None if unknown.

    `payload` is the ratio of NVLink payload to the NVLink limit in the busier direction, and `sent`
    is this ratio in the transmit direction. `wire` is the ratio of received NVLink wire bytes to
    payload bytes. `spinning` is the maximum share in which kernels can spin, based on the power
    draw. `power` contains the two levels of the power samples. `level` is the activity without
    waiting, which `work_level` returns.
    """

    activity: float
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None
    payload: float | None = None
    sent: float | None = None
    power: PowerLevels | None = None
    level: WorkLevel | None = None
    wire: float | None = None
    spinning: float = 1.0


@dataclass(frozen=True, slots=True)
class ActiveShares:
    """Time shares of an active GPU, which sum to its activity. `waits_for` is the GPU that causes
    most of the waiting. `late` is the share in which all ranks wait for kernel launches."""

    busy: float
    communicating: float
    waiting: float
    waits_for: GpuKey | None = None
    late: float = 0.0

    @property
    def total(self) -> float:
        """The GPU's activity, which is the sum of all shares."""
        return self.busy + self.communicating + self.waiting + self.late


def not_computing(second: ActiveSecond) -> float:
    """Return the share of time in which the GPU is active but only waits or transfers data.

    If the GPU only spins, the share is its whole activity. Otherwise, it is the time at the lower
    of two levels of the power samples. With GPM, and while NVLink carries data, a second estimate
    is based on SM activity and NVLink bytes. The larger estimate is returned, because power may
    have three levels (idle, transfers, and work). Without GPM, the share is based on NVLink bytes
    if the power samples have one level.
    """
    if only_spins(second):
        return second.activity
    lower = at_lower_power(second)
    if second.sm is None:
        exposed = _transfer_time(second) if _transfers_alone(second) else 0.0
        return lower or min(second.activity, exposed)
    full = 1.0 if _transfers_alone(second) else WORKING_SM
    return max(lower, min(_besides_work(second, full), _transfer_time(second)))


def at_lower_power(second: ActiveSecond) -> float:
    """Return the share of time in which the GPU is active at the lower of two power levels. It is
    at most the share in which kernels can spin, based on SM activity."""
    if second.power is None or not second.power.distinct:
        return 0.0
    lower = min(second.activity, max(0.0, second.power.lower_share - (1.0 - second.activity)))
    return lower if second.sm is None else min(lower, _most_spinning(second, second.sm))


def _besides_work(second: ActiveSecond, full: float) -> float:
    """Return the maximum share of time that NVLink transfers can take, based on SM activity. `full`
    is the ratio of SM activity to overall activity during work."""
    if second.sm is None or not second.activity or full <= TRANSFERRING_SM:
        return 0.0
    share = (full - second.sm / second.activity) / (full - TRANSFERRING_SM)
    return second.activity * min(1.0, max(0.0, share))


def _most_spinning(second: ActiveSecond, sm: float, full: float = 1.0) -> float:
    """Return the maximum share of time in which kernels can spin, based on SM activity. `full` is
    the ratio of SM activity to overall activity during work."""
    return max(0.0, full * second.activity - sm) / (full - MOST_SPINNING_SM)


def _transfers_alone(second: ActiveSecond) -> bool:
    """Return whether the ratio of wire bytes to payload shows that transfers and work alternate."""
    return second.wire is not None and second.wire < EXPOSED


def only_spins(second: ActiveSecond) -> bool:
    """Return whether kernels seem to only spin or transfer data. Return false without GPM."""
    if second.sm is None or second.tensor is None or not second.activity:
        return False
    # transfers use at most the same share of DRAM bandwidth as of NVLink bandwidth
    still = second.dram is not None and second.dram < NOTHING + (second.payload or 0.0)
    return second.activity > ALWAYS and second.tensor < NOTHING and _is_low(second) and still


def _is_low(second: ActiveSecond) -> bool:
    """Return whether SM activity is low enough for kernels that only spin or transfer data."""
    return second.sm is not None and second.sm <= MOST_SPINNING_SM * second.activity


def communicating(second: ActiveSecond, idle_work: float) -> float:
    """Return the share of time that NVLink transfers take, limited to the share `idle_work`."""
    payload = second.payload or 0.0
    if payload < NOTHING * max(idle_work, LEAST_WAIT) or not idle_work:
        return 0.0
    found = min(idle_work, _transfer_time(second))
    return found if found >= LEAST_TRANSFER else 0.0


def _transfer_time(second: ActiveSecond) -> float:
    """Return the share of time that NVLink transfers take at the usual rate on the wire."""
    return (second.payload or 0.0) * min(second.wire or EXPOSED, SMALL_MESSAGES) / WIRE_RATE


def alike(one: float | None, other: float | None) -> bool:
    """Return whether two values differ by at most 12 % (EQUAL). False if one is unknown."""
    if one is None or other is None:
        return False
    return abs(one - other) <= EQUAL * max(abs(one), abs(other), 1e-9)


def in_lock_step(one: ActiveSecond, other: ActiveSecond) -> bool:
    """Return whether two GPUs run the same steps: both send the same amount of data over NVLink,
    and the links of both are in use.

    Ranks of the same collective always send equal amounts. GPUs with different roles, such as
    prefill and decode or the jobs of a sweep, do not.
    """
    mine, theirs = one.sent or 0.0, other.sent or 0.0
    return min(mine, theirs) >= LINKS_AT_REST and alike(mine, theirs)


def waiting_for_peer(second: ActiveSecond, peer: ActiveSecond) -> float:
    """Return the share of time for which a GPU waits for `peer`, assuming that `peer` never waits.

    A GPU's work is proportional to its DRAM activity (or tensor activity). The peer's work per
    active second shows how long this GPU's work takes. The rest of its active time is waiting.
    """
    if second.sm is None and peer.sm is None:  # without GPM, utilization includes spinning
        longer = min(second.activity - peer.activity, second.spinning)
        waited = max(longer, _longer_at_lower_power(second, peer))
    else:
        waited = second.activity - _useful(second, peer)
        if second.sm is not None and waited >= LEAST_WAIT:
            waited = min(waited, _most_spinning(second, second.sm))
    return waited if waited >= LEAST_WAIT else 0.0


def _longer_at_lower_power(second: ActiveSecond, peer: ActiveSecond) -> float:
    """Return how much longer this GPU is at the lower power level than the peer, as a share of
    time. Both GPUs transfer for the same time, so the difference is time spent waiting."""
    if second.power is None or peer.power is None or not second.power.distinct:
        return 0.0
    mine, theirs = not_computing(second), not_computing(peer)
    return 0.0 if alike(mine, theirs) else mine - theirs


def _useful(second: ActiveSecond, peer: ActiveSecond) -> float:
    """Return the share of time that the GPU's work would take at the peer's rate of work per active
    second. The rate is based on DRAM activity or, if that is too low, tensor activity."""
    if not peer.activity:
        return second.activity
    pairs = ((second.dram, peer.dram, NOTHING), (second.tensor, peer.tensor, NOTHING))
    for mine, theirs, least in pairs:
        if mine is not None and theirs is not None and theirs >= least:
            return min(1.0, mine * peer.activity / theirs)
    return peer.activity  # small kernels: both GPUs do equal work, so the difference is waiting


def divide(second: ActiveSecond, peers: Mapping[GpuKey, ActiveSecond]) -> ActiveShares:
    """Return the time shares of an active GPU. `peers` contains the other GPUs of its job."""
    alongside = {key: peer for key, peer in peers.items() if in_lock_step(second, peer)}
    levels = [one.level for one in (second, *alongside.values()) if one.level is not None]
    if alongside and levels and not only_spins(second):
        return _by_level(second, alongside, max(levels))
    waits = {key: waiting_for_peer(second, peer) for key, peer in alongside.items()}
    waited = max(waits.values(), default=0.0)  # the longest wait for a GPU in lockstep
    culprit = max(waits, key=waits.__getitem__) if waited else None
    without_work = not_computing(second) if alongside or peers else 0.0
    if not alongside and peers and _is_low(second) and not only_spins(second):
        besides = _besides_work(second, WORKING_SM)
        without_work = min(besides, at_lower_power(second) or besides)
    transfers = communicating(second, without_work)
    if culprit is not None:  # once all ranks are ready, a collective takes the same time on each
        last = alongside[culprit]
        transfers = min(transfers, communicating(last, not_computing(last)))
    elif transfers and alongside:  # no rank is late, so the links may be slower than usual
        transfers = without_work
    elif transfers and len(peers) == 1:  # one sends, and the other waits until it does
        (culprit,) = peers
    if alongside and second.sm is None and not without_work:
        transfers = min(second.activity - waited, _small_messages(second))
    waiting = max(waited, without_work - transfers)
    waiting = min(waiting, second.activity - transfers)
    if waiting < LEAST_WAIT:
        waiting, culprit = 0.0, None
    return ActiveShares(second.activity - transfers - waiting, transfers, waiting, culprit)


def _by_level(
    second: ActiveSecond, alongside: Mapping[GpuKey, ActiveSecond], level: WorkLevel
) -> ActiveShares:
    """Return the shares of an active GPU based on DRAM activity. Without waiting, DRAM activity is
    assumed to be that of `level`, so lower DRAM activity shows how long the GPU waits. The GPU
    waits for the peer that waits least. If all ranks wait, kernel launches are late. Each rank
    waits while a peer is idle, so the delay is at most the idle time of the most active GPU. Ranks
    are also idle at the same time, so half of this counts."""
    ranks = (second, *alongside.values())
    least = min(one.activity for one in ranks)
    if level.dram < NOTHING:  # only collectives or work in caches, equal on every rank
        last = min(alongside, key=lambda key: alongside[key].activity)
        waits, waiting, transfers = {last: 0.0}, second.activity - least, least
        if level.sm > MOST_SPINNING_SM:
            transfers = min(least, max(communicating(second, least), _small_messages(second)))
    else:
        waits = {key: _beneath(peer, level) for key, peer in alongside.items()}
        last = min(waits, key=lambda key: waits[key])
        waiting = _waiting(second, alongside[last], level)
        # a collective takes the same time on every rank
        transfers = max(communicating(one, _besides(one, level)) for one in ranks)
        # of a GPU that mostly rests, the lower level is that of rest and of light work
        lower = at_lower_power(second) if least >= MOSTLY else 0.0
        if transfers and waiting < LEAST_WAIT:  # the links may be slower than usual
            transfers = max(transfers, lower)
        transfers = max(transfers, min(_small_messages(second), _besides(second, level)))
        transfers = min(transfers, second.activity - waiting)
        waiting = max(waiting, lower - transfers)  # a pipeline waits in every window
    late = MOSTLY * min(waiting, waits[last], max(0.0, 1.0 - max(one.activity for one in ranks)))
    waiting -= late
    if waiting < LEAST_WAIT:
        waiting = 0.0
    busy = second.activity - transfers - waiting - late
    is_later = waits[last] - late < waiting
    return ActiveShares(busy, transfers, waiting, last if is_later else None, late)


def _besides(second: ActiveSecond, level: WorkLevel) -> float:
    """Return the maximum share of time in which an active GPU transfers data without working."""
    besides = _besides_work(second, _full(second, level))
    return max(0.0, besides - _beneath(second, level))


def _small_messages(second: ActiveSecond) -> float:
    """Return the share of time that small NVLink messages take. They never overlap with work."""
    above = (second.wire or 0.0) - SMALL_MESSAGES
    if above <= 0 or second.payload is None:
        return 0.0
    return _transfer_time(second) + second.payload * SMALL_TIME * above


def _full(second: ActiveSecond, level: WorkLevel) -> float:
    """Return the assumed ratio of SM activity to overall activity while the GPU computes. It is
    that of `level`, or more if all windows include transfers. It is 1 for dense products, and for
    work that alternates with transfers, because the work can then use all SMs."""
    if _transfers_alone(second):
        return 1.0
    dense = (second.tensor or 0.0) / second.sm if second.sm else 0.0
    return max(min(level.sm, WORKING_SM), (3.0 + min(1.0, dense)) / 4)


def _waiting(second: ActiveSecond, peer: ActiveSecond, level: WorkLevel) -> float:
    """Return the share of time that the GPU waits. If `peer` is active for as long, but with higher
    SM activity, the GPU waits while the peer works, even if the peer's work uses less DRAM."""
    mine, its = second.sm or 0.0, peer.sm or 0.0
    if mine >= its or alike(mine, its) or not alike(second.activity, peer.activity):
        return _beneath(second, level)
    longer = (its - mine + second.activity - peer.activity) / (1.0 - TRANSFERRING_SM)
    return min(second.activity, _beneath(peer, level) + longer)


def _beneath(second: ActiveSecond, level: WorkLevel) -> float:
    """Return the share of time that the GPU waits, based on its DRAM activity relative to `level`.
    It is limited by SM activity, because a phase of a job may use less DRAM without waiting."""
    waits = max(0.0, second.activity - (second.dram or 0.0) / level.dram)
    if second.sm is None or level.sm <= MOST_SPINNING_SM:
        return waits
    return min(waits, _most_spinning(second, second.sm, level.sm))
