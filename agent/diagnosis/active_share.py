"""Division of the active share of a GPU's second: own work, communication, waiting for a peer.

Utilisation and graphics activity count a kernel that spins in a collective as work. Measured on
H100 and H200, these signals tell them apart: a spinning kernel keeps SM activity at 0.17 to 0.25
with tensor and DRAM activity at 0; tensor and DRAM activity follow the work, SM activity does not;
and the 20 ms power samples fall to a lower level for as long as a GPU waits or only transfers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from agent.diagnosis.power_levels import PowerLevels
from agent.model import GpuKey

MOST_SPINNING_SM = 0.40
"""SM activity of a kernel that moves data and works on it, at most (an all-gather that copies its
output: 0.33; a kernel that only spins: 0.17 to 0.25 on H100s and H200s). A GPU whose SM activity is
nearly its activity does not wait, at any power: kernels that wait for memory draw half as much as
dense products."""

NOTHING, LINKS_AT_REST = 0.02, 1e-4
"""Tensor and DRAM activity below which a GPU does no work, and payload over the NVLink limit below
which transfers take no time; and the payload below which the links are at rest (gradients of a
small network, which take 5 % of a step, are 0.012)."""

TRANSFER_RATE = 0.60
"""Payload over the NVLink limit during transfers alone. 14 loads on H200s had 0.56 to 0.72 with
messages of hundreds of MB, 0.32 to 0.50 with tens; gradients of a few MB and one channel came at
0.04 to 0.24, and take longer than is reported."""

WORKING_SM = 0.90
"""SM activity over activity while a GPU computes: 0.85 to 0.89 for training on H100s with
communication beside it, 0.96 for dense products. A GPU that works less fully is taken to
communicate for as long as its payload takes at most."""

ALWAYS = 0.90
"""Activity from which a whole second may be spinning, and the GPU waits for no data. Without this
bound no figure of the tapes changes; it stays so that a few small kernels do not pass for a hang,
and a well fed job has its steps."""

TRANSFERRING_SM = 0.12
"""SM activity of a kernel that moves data between GPUs: it takes 16 to 24 of 132 SMs. With 0.10
here and in EQUAL, one fewer of the 180 GPUs on the tapes is right."""

EQUAL = 0.12
"""Relative difference up to which two figures of ranks in lock-step count as the same; see
TRANSFERRING_SM."""

SMALL_MESSAGES, SMALL_TIME = 2.05, 110.0
"""Bytes on the wire of NVLink for each byte received, above which messages are small, and how much
longer than at the limit each byte takes for each unit above it. On two H100s, messages alone had
1.2 to 1.4 bytes on the wire (4 MB and more, 70 to 310 GB/s), 2.1 to 2.2 (256 KB, 23 to 45 GB/s),
2.3 to 2.45 (64 KB, 8 to 18 GB/s), 2.5 to 2.6 (16 KB and less, 1 to 3 GB/s); buckets of gradients
beside work 1.6 to 2.0, stages of a pipeline 2.0 to 2.1."""

LEAST_TRANSFER, LEAST_WAIT = 0.01, 0.03
"""Shares of a second below which the agent reports no communication, and takes ranks to be even.
With 0.03 for both, four fewer of the 180 GPUs on the tapes are right; with 0.05, eight fewer."""

CLEARLY = 0.05
"""Share of a second that power samples can show without GPM: in transfers, and in the excess of a
rank's time at low power over that of the rank it waits for (two ranks with exposed communication of
40 % differed by 0.01 to 0.04)."""

RARE = 0.20
"""Share of the samples up to which a lower level is too rare to be kept apart from variations of
the work; a more frequent level gives its own share of the time. Without this bound the errors of
the 180 GPUs on tapes of several GPUs without GPM sum to 17.38 instead of 16.93."""

DIP = 0.78
"""Ratio of the lowest power samples to the others, below which a GPU does not work meanwhile. On
H200s 0.48 to 0.75 if transfers stand alone for 10 ms or longer, 0.81 to 0.96 if they are shorter or
go beside work. With 0.62, four fewer of the 180 GPUs on the tapes are right."""


class WorkLevel(NamedTuple):
    """SM and DRAM activity over activity while a GPU works and does not wait."""

    sm: float
    dram: float


def work_level(seen: Iterable[WorkLevel]) -> WorkLevel | None:
    """The level of the windows that wait least: their SM activity is as large as the second
    largest; the largest may be an outlier. Return None for fewer than two windows."""
    by_sm = sorted(seen, reverse=True)[1:]
    if not by_sm:
        return None
    full = by_sm[0].sm
    alike = [one.dram for one in by_sm if one.sm >= (1.0 - LEAST_WAIT) * full]
    return WorkLevel(full, fmean(alike))


@dataclass(frozen=True, slots=True)
class ActiveSecond:
    """Means of a GPU over the last seconds, shares 0-1; an unknown mean is None.

    `payload` is NVLink's payload of the fuller direction over its limit, `sent` of the sent
    direction; `power` the levels of its 20 ms samples; `level` that of its work in windows of 100
    ms; `wire` the bytes on NVLink's wire for each byte received.
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


@dataclass(frozen=True, slots=True)
class ActiveShares:
    """Parts of the second that sum to the activity; `waits_for` is the GPU that most waiting is
    for, `late` the wait of all ranks for launches."""

    busy: float
    communicating: float
    waiting: float
    waits_for: GpuKey | None = None
    late: float = 0.0

    @property
    def total(self) -> float:
        """The activity that was divided."""
        return self.busy + self.communicating + self.waiting + self.late


def not_computing(second: ActiveSecond) -> float:
    """Share of the second in which the GPU is active and does no work of its own.

    If its power samples have two levels, they show the share; SM activity shows it if it lies
    between moving data and work while the links carry something. The larger share counts: rest,
    transfers and work are three levels. If nothing but spinning is seen, it is all of the activity.
    """
    if only_spins(second):
        return second.activity
    lower = _at_lower_power(second)
    if second.sm is None:
        return max(lower, _transfers_in_dips(second))
    if not second.payload:
        return lower
    return max(lower, min(_besides_work(second), second.payload / TRANSFER_RATE))


def _at_lower_power(second: ActiveSecond) -> float:
    """The active share of the second at the lower of two levels of power, as far as SM activity
    does not show work."""
    if second.power is None or not second.power.distinct:
        return 0.0
    lower = min(second.activity, max(0.0, second.power.lower_share - (1.0 - second.activity)))
    return lower if second.sm is None else min(lower, _most_spinning(second, second.sm))


def _besides_work(second: ActiveSecond, full: float = WORKING_SM) -> float:
    """The share of the second that transfers at most, by SM activity; `full` is that of work, over
    activity."""
    if second.sm is None or not second.activity or full <= TRANSFERRING_SM:
        return 0.0
    share = (full - second.sm / second.activity) / (full - TRANSFERRING_SM)
    return second.activity * min(1.0, max(0.0, share))


def _most_spinning(second: ActiveSecond, sm: float, full: float = 1.0) -> float:
    """The largest share of the second that its SM activity leaves to kernels that spin; `full` is
    that of work, over activity."""
    return max(0.0, full * second.activity - sm) / (full - MOST_SPINNING_SM)


def _transfers_in_dips(second: ActiveSecond) -> float:
    """Without GPM: the longest time that the payload can take, if as many of the lowest power
    samples lie clearly below the others; beside work they do not."""
    exposed = min(1.0, (second.payload or 0.0) / TRANSFER_RATE)
    if exposed < CLEARLY or second.power is None:
        return 0.0
    if second.power.distinct and exposed > RARE:
        return 0.0
    depth = second.power.depth(exposed, 1.0 - second.activity)
    return exposed if depth is not None and depth < DIP else 0.0


def only_spins(second: ActiveSecond) -> bool:
    """Return whether the whole second looks like a kernel that waits or transfers; false without
    GPM."""
    if second.sm is None or second.tensor is None or not second.activity:
        return False
    low = second.sm / second.activity <= MOST_SPINNING_SM
    # transfers use no more of the DRAM's bandwidth than of NVLink's
    still = second.dram is not None and second.dram < NOTHING + (second.payload or 0.0)
    return second.activity > ALWAYS and second.tensor < NOTHING and low and still


def communicating(second: ActiveSecond, idle_work: float) -> float:
    """Return the share of the time without own work that goes to transfers over NVLink."""
    payload = second.payload or 0.0
    if payload < NOTHING * max(idle_work, LEAST_WAIT) or not idle_work:
        return 0.0
    found = min(idle_work, payload / TRANSFER_RATE)
    return found if found >= LEAST_TRANSFER else 0.0


def alike(one: float | None, other: float | None) -> bool:
    """Return whether two figures are equal within noise."""
    if one is None or other is None:
        return False
    return abs(one - other) <= EQUAL * max(abs(one), abs(other), 1e-9)


def in_lock_step(one: ActiveSecond, other: ActiveSecond) -> bool:
    """Return whether two GPUs take the same steps: both send the same over NVLink, above nothing.

    Servers that hand work on (prefill to decode), sweeps and roles of reinforcement learning send
    differently; ranks of the same collective cannot.
    """
    if min(one.sent or 0.0, other.sent or 0.0) < LINKS_AT_REST:
        return False
    return alike(one.sent, other.sent)


def waiting_for_peer(second: ActiveSecond, peer: ActiveSecond) -> float:
    """Share of the second that a GPU waits for a peer in lock-step that never waits.

    The work done follows DRAM (or tensor) activity; the peer's work in its own active time, per
    unit of it, is the work that this GPU's active time would hold if it did not wait.
    """
    if second.sm is None and peer.sm is None:  # without GPM: utilisation counts the spinning
        waited = max(second.activity - peer.activity, _longer_at_lower_power(second, peer))
    else:
        waited = second.activity - _useful(second, peer)
        waited = waited if second.sm is None else min(waited, _most_spinning(second, second.sm))
    return waited if waited >= LEAST_WAIT else 0.0


def _longer_at_lower_power(second: ActiveSecond, peer: ActiveSecond) -> float:
    """The excess over the peer's time of a GPU at the lower of two power levels: both transfer as
    long, and the GPU waits for the excess."""
    if second.power is None or peer.power is None or not second.power.distinct:
        return 0.0
    longer = not_computing(second) - not_computing(peer)
    return longer if longer >= CLEARLY else 0.0


def _useful(second: ActiveSecond, peer: ActiveSecond) -> float:
    """Share of the second for the peer's work in its own active time: by DRAM, else by tensor
    activity."""
    if not peer.activity:
        return second.activity
    pairs = ((second.dram, peer.dram, NOTHING), (second.tensor, peer.tensor, NOTHING))
    for mine, theirs, least in pairs:
        if mine is not None and theirs is not None and theirs >= least:
            return min(1.0, mine * peer.activity / theirs)
    return peer.activity  # small kernels: both do the same work, so the excess is waiting


def divide(second: ActiveSecond, peers: Mapping[GpuKey, ActiveSecond]) -> ActiveShares:
    """The parts of a GPU's active share; `peers` are the other GPUs of its job."""
    alongside = {key: peer for key, peer in peers.items() if in_lock_step(second, peer)}
    levels = [one.level for one in (second, *alongside.values()) if one.level is not None]
    if alongside and levels and not only_spins(second):
        return _by_level(second, alongside, max(levels))
    waited, culprit = _longest_wait(second, alongside)
    without_work = not_computing(second) if alongside or peers else 0.0
    transfers = communicating(second, without_work)
    if culprit is not None:  # once all are there, a collective takes as long on every rank
        last = alongside[culprit]
        transfers = min(transfers, communicating(last, not_computing(last)))
    elif transfers:  # none is late: links may be slower than usual
        transfers = without_work
    waiting = max(waited, without_work - transfers)
    waiting = min(waiting, second.activity - transfers)
    if waiting < LEAST_WAIT:
        waiting, culprit = 0.0, None
    return ActiveShares(second.activity - transfers - waiting, transfers, waiting, culprit)


def _by_level(
    second: ActiveSecond, alongside: Mapping[GpuKey, ActiveSecond], level: WorkLevel
) -> ActiveShares:
    """The parts by DRAM activity: time without DRAM activity is waiting, and time that moves data
    between GPUs is at the level of the windows with work, for they hold both. The GPU waits for the
    peer that waits least; a wait common to all is a late launch, as far as a GPU rests too."""
    ranks = (second, *alongside.values())
    least = min(one.activity for one in ranks)
    if level.dram < LINKS_AT_REST:  # collectives alone, which take as long on every rank
        last = min(alongside, key=lambda key: alongside[key].activity)
        waits, waiting, transfers = {last: 0.0}, second.activity - least, least
    else:
        waits = {key: _beneath(peer, level) for key, peer in alongside.items()}
        last = min(waits, key=lambda key: waits[key])
        waiting = _beneath(second, level)
        # a collective takes as long on every rank
        transfers = max(communicating(one, _besides(one, level)) for one in ranks)
        lower = _at_lower_power(second)
        if transfers and waiting < LEAST_WAIT:  # links may be slower than usual
            transfers = max(transfers, lower)
        transfers = max(transfers, min(_small_messages(second), _besides(second, level)))
        transfers = min(transfers, second.activity - waiting)
        waiting = max(waiting, lower - transfers)  # a pipeline waits in every window
    late = min(waiting, waits[last], 1.0 - least)
    waiting -= late
    if waiting < LEAST_WAIT:
        waiting = 0.0
    busy = second.activity - transfers - waiting - late
    is_later = waits[last] - late < waiting
    return ActiveShares(busy, transfers, waiting, last if is_later else None, late)


def _besides(second: ActiveSecond, level: WorkLevel) -> float:
    """The share of the second that it neither works nor waits, at most."""
    besides = _besides_work(second, _full(second, level))
    return max(0.0, besides - _beneath(second, level))


def _small_messages(second: ActiveSecond) -> float:
    """The share of the second that NVLink's small messages take: nothing runs beside them."""
    above = (second.wire or 0.0) - SMALL_MESSAGES
    if above <= 0 or second.payload is None:
        return 0.0
    return second.payload * (1.0 / TRANSFER_RATE + SMALL_TIME * above)


def _full(second: ActiveSecond, level: WorkLevel) -> float:
    """SM activity over activity while it computes: windows that wait least may transfer too, and
    dense products fill the SMs."""
    dense = (second.tensor or 0.0) / second.sm if second.sm else 0.0
    return max((level.sm + WORKING_SM) / 2, (3.0 + min(1.0, dense)) / 4)


def _beneath(second: ActiveSecond, level: WorkLevel) -> float:
    """The share of the second that is active and uses no DRAM, as far as its SM activity is beneath
    that of work too: a job's phases may use more DRAM or less."""
    waits = max(0.0, second.activity - (second.dram or 0.0) / level.dram)
    if second.sm is None or level.sm <= MOST_SPINNING_SM:
        return waits
    return min(waits, _most_spinning(second, second.sm, level.sm))


def _longest_wait(
    second: ActiveSecond, alongside: Mapping[GpuKey, ActiveSecond]
) -> tuple[float, GpuKey | None]:
    """The longest wait for any GPU in lock-step, and that GPU."""
    longest = 0.0
    culprit: GpuKey | None = None
    for key, peer in alongside.items():
        waited = waiting_for_peer(second, peer)
        if waited > longest:
            longest, culprit = waited, key
    return longest, culprit
