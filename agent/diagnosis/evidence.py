"""Evidence about a GPU in a tick, for rules. Values are computed when a rule first needs them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from agent.diagnosis.active_share import NOTHING, ActiveSecond, ActiveShares, divide, only_spins
from agent.diagnosis.process_evidence import DATA_RATE, SPAN, ProcessEvidence
from agent.diagnosis.tick_context import GpuHistory, PathUse, TickContext
from agent.model import GpuKey, SignalQuality
from agent.series import KEPT
from agent.sources import activity, clocks, host, nvlink, pcie, power, process, workload
from agent.specs.sheets import BOTH_WAYS

THROTTLE_BITS = {t.reason: t.bit for t in clocks.THROTTLES}

HEALTHY = ("power_cap", "sync_boost")
HOLDING_DOWN = tuple(t.reason for t in clocks.THROTTLES if t.reason not in HEALTHY)

SPINNING_POWER = 0.35
"""Fraction of the power limit below which a fully utilized GPU only spins (it draws 0.18 on an
H200). A GPU that draws more power does real work, so a GPM activity of 0 is invalid."""


@dataclass(eq=False)
class Evidence:
    """Evidence about a GPU in a tick. A value is None if unknown."""

    gpu: GpuKey
    context: TickContext
    history: GpuHistory = field(default_factory=GpuHistory)
    others: "Mapping[GpuKey, Evidence]" = field(default_factory=dict)  # all GPUs in this tick

    def __post_init__(self) -> None:
        value, self.labels = self.context.samples.value, self.gpu.labels
        self.processes = value(process.PROCESSES, *self.labels)
        self.activity = value(activity.ACTIVITY, *self.labels)
        """Activity in this tick. It determines for how much of the tick the GPU was inactive."""

    @cached_property
    def host(self) -> ProcessEvidence:
        """Evidence about the GPU's processes from /proc and cgroups."""
        return ProcessEvidence(self.labels, self.context)

    @cached_property
    def sm(self) -> float | None:
        return self.context.samples.mean(activity.SM_ACTIVE, *self.labels)

    @cached_property
    def power(self) -> float | None:
        """Power draw as a fraction of the power limit."""
        drawn = self.context.samples.mean(power.POWER, *self.labels)
        limit = self.context.samples.value(power.POWER_LIMIT, *self.labels)
        return drawn / limit if drawn is not None and limit else None

    @cached_property
    def limit_lowered(self) -> bool:
        """Whether the power limit is below the board's default."""
        board = self.context.samples.value(power.DEFAULT_LIMIT, *self.labels)
        limit = self.context.samples.value(power.POWER_LIMIT, *self.labels)
        return board is not None and limit is not None and limit < board

    @cached_property
    def quality(self) -> SignalQuality:
        return SignalQuality.NVML if self.sm is None else SignalQuality.GPM

    @cached_property
    def work(self) -> float | None:
        """Amount of real work (0-1): SM activity or, if unknown, the fraction `power`."""
        return self.power if self.sm is None else self.sm

    @property
    def sm_underutilised(self) -> bool:
        """Whether the GPU does almost no arithmetic. False if this is unknown."""
        limits = self.context.thresholds
        low = limits.sm_low if self.quality is SignalQuality.GPM else limits.power_low
        return self.work is not None and self.work < low

    @cached_property
    def mean_activity(self) -> float:
        """Mean activity over the last 3 s, so that verdicts do not alternate near a threshold."""
        return self.context.samples.mean(activity.ACTIVITY, *self.labels) or 0.0

    @property
    def looks_busy(self) -> bool:
        """Whether the GPU is active almost all the time. Its kernels may only spin."""
        return self.mean_activity >= self.context.thresholds.busy

    @cached_property
    def throttle_masks(self) -> list[int]:
        """The bit masks of clock event reasons that NVML returned in the last 3 s."""
        return [int(look) for look in self.context.samples.recent(clocks.REASONS, *self.labels)]

    def throttled(self, *reasons: str) -> float:
        """Return the share of the last 3 s in which any of the given reasons lowered the clocks."""
        masks, mask = self.throttle_masks, sum(THROTTLE_BITS[reason] for reason in reasons)
        seen = sum([bool(held & mask) for held in masks]) / len(masks) if masks else 0.0
        for reason in (one for one in reasons if not THROTTLE_BITS[one]):  # only a counter exists
            counted = self.context.samples.rate(clocks.THROTTLE, *self.labels, reason)
            seen = max(seen, counted or 0.0)
        return seen

    @cached_property
    def sm_clock(self) -> float | None:
        """Mean SM clock over the last 3 s (Hz)."""
        return self.context.samples.mean(clocks.CLOCK, *self.labels, "sm")

    @cached_property
    def clock(self) -> float | None:
        """Ratio of the SM clock to its maximum."""
        now = self.sm_clock
        limit = self.context.samples.value(clocks.CLOCK_LIMIT, *self.labels, "sm")
        return now / limit if now is not None and limit else None

    def path_usage(self, path: str) -> list[PathUse]:
        """Return this GPU's usage of a kind of data path in each direction, busiest first."""
        return self.context.path_usage(path, self.gpu)

    def fullest(self, path: str) -> PathUse | None:
        return next(iter(self.path_usage(path)), None)

    @cached_property
    def pcie_rates(self) -> tuple[float | None, float | None]:
        """Mean bytes per second sent and received. A single reading may cover only 20 ms."""
        rate = self.context.samples.rate
        sent = rate(pcie.TRANSMITTED, *self.labels, seconds=SPAN)
        return sent, rate(pcie.RECEIVED, *self.labels, seconds=SPAN)

    def share_of_slot(self, wire: PathUse) -> float:
        """Return the ratio of PCIe traffic to the capacity of the link at its current generation.
        The capacity halves with each generation below the maximum. If the traffic exceeds this
        capacity, ignore the generation, because it was read while the GPU was idle."""
        now = self.context.samples.value(pcie.GENERATION, *self.labels)
        most = self.context.samples.value(pcie.GENERATION_LIMIT, *self.labels)
        if not now or not most or now >= most:
            return wire.ratio
        scaled = wire.ratio * 2.0 ** (most - now)
        return scaled if scaled <= 1.0 else wire.ratio

    @cached_property
    def nvlink(self) -> PathUse | None:
        """NVLink usage in the busier direction. GPM's payload rate is preferred, because it covers
        the last second. The rate of NVLink counters is a mean over up to 10 s."""
        wires = []
        for wire in self.path_usage("nvlink"):
            rate = self.context.samples.value(activity.NVLINK_RATE, *self.labels, wire.direction)
            wires.append(wire if rate is None else wire._replace(ratio=rate / wire.limit))
        return max(wires, key=lambda w: w.ratio, default=None)

    @cached_property
    def job(self) -> frozenset[GpuKey]:
        """All GPUs of the job, including this GPU."""
        return self.context.jobs.get(self.gpu, frozenset((self.gpu,)))

    @cached_property
    def peers(self) -> list["Evidence"]:
        """Evidence about the other GPUs of the job."""
        return [self.others[one] for one in sorted(self.job - {self.gpu}) if one in self.others]

    @cached_property
    def has_ranks(self) -> bool:
        """Whether the job's processes have ranks, which means that its GPUs work together."""
        return self.history.nvlink_seen or self.context.has_ranks(self.job)

    @cached_property
    def works(self) -> float:
        """Share of time in which the GPU is active without waiting for a peer, or in which it is
        inactive while its launching threads run or wait for files, or its busiest worker does."""
        works = self.second.activity + max(0.0, self.ran_longer) + self.blocked + self.host.busiest
        return min(1.0, works) - (self.by_links.waiting or self.spins * self.second.activity)

    @property
    def ran_longer(self) -> float:
        """Share of time for which launching threads run longer than the GPU is active, or less."""
        return (self.host.launching or 0.0) - self.second.activity

    @cached_property
    def blocked(self) -> float:
        """Share of time for which a launching thread waits for files while its GPU is inactive.
        While the GPU is active, the thread runs or waits. If no worker or other rank waits for
        files, the cgroup's tasks do so for at least as long as the kernel counts."""
        own, stalled = self.host.asleep("launching", "dispatching"), 0.0
        peers = self.peers if self.has_ranks else []
        others = [one.host.share("launching", "blocked", seconds=KEPT) for one in peers]
        if not any((*others, self.host.share("working", "blocked", seconds=KEPT))):
            stalled = self.host.rate(workload.CGROUP_STALLED, "io") or 0.0
        if stalled and not self.context.blocked:  # too short for sampling
            counted = self.context.samples.rate(host.IO_WAIT, seconds=SPAN) or 0.0
            own = min(counted, 1.0 / KEPT)
        return max(0.0, max(own, stalled) + min(0.0, self.ran_longer))

    @property
    def joined(self) -> list["Evidence"]:
        """The peers if NVLink has carried data. Otherwise, GPUs may run parts of a sweep."""
        return self.peers if self.history.nvlink_seen else []

    @cached_property
    def by_links(self) -> ActiveShares:
        """The time shares of the active GPU in comparison with the GPUs that are joined to it."""
        return divide(self.second, {peer.gpu: peer.second for peer in self.joined})

    @cached_property
    def pcie_peer_traffic(self) -> bool:
        """Whether the PCIe traffic is between the GPUs of the job.

        Without NVLink, peer-to-peer traffic uses PCIe, so another GPU of the job receives each byte
        that this GPU sends.
        """
        if self.context.samples.value(nvlink.LINKS, *self.labels):
            return False
        mine = {w.direction: w.ratio for w in self.path_usage("pcie")}
        least = self.context.thresholds.communicating
        return any(
            min(mine.get(way, 0.0), theirs.ratio) >= least
            for peer in self.peers
            for theirs in peer.path_usage("pcie")
            for way in BOTH_WAYS
            if way != theirs.direction
        )

    @cached_property
    def second(self) -> ActiveSecond:
        """The averages in `means`, with `power` and `level` added from the GPU's history."""
        return replace(self.means, power=self.history.power, level=self.history.level)

    @cached_property
    def means(self) -> ActiveSecond:
        """The GPU's metrics averaged over the last 6 s (SPAN), without `power` and `level`."""
        samples, limit = self.context.samples, self.nvlink.limit if self.nvlink else None
        rate = activity.NVLINK_RATE
        rates = {way: samples.mean(rate, *self.labels, way, seconds=SPAN) for way in PAYLOAD}
        if None in rates.values():  # without GPM, use the rates of the byte counters
            rates = {w: samples.rate(c, *self.labels, seconds=SPAN) for w, c in PAYLOAD.items()}
        if None in rates.values():
            rates.update({w.direction: w.ratio * w.limit for w in self.path_usage("nvlink")})
        known = [rate / limit for rate in rates.values() if rate is not None and limit]
        sent = rates.get("transmit")
        got, wire = (samples.rate(c, *self.labels) for c in (nvlink.RECEIVED, nvlink.WIRE_RECEIVED))
        return ActiveSecond(
            activity=samples.mean(activity.ACTIVITY, *self.labels, seconds=SPAN) or 0.0,
            sm=samples.mean(activity.SM_ACTIVE, *self.labels, seconds=SPAN),
            tensor=samples.mean(activity.TENSOR_ACTIVE, *self.labels, seconds=SPAN),
            dram=samples.mean(activity.MEMORY_BANDWIDTH, *self.labels, seconds=SPAN),
            payload=max(known, default=None),
            sent=sent / limit if sent is not None and limit else None,
            wire=wire / got if wire and got else None,
            spinning=(1.0 - (self.power or 0.0)) / (1.0 - SPINNING_POWER),
        )

    @property
    def spins(self) -> bool:
        """Whether the GPU's kernels only spin: they do no work and transfer no data, and no new
        kernels are launched. Without NVLink, PCIe traffic may come from spinning kernels."""
        second, samples = self.means, self.context.samples
        ways = (pcie.RECEIVED, pcie.TRANSMITTED)  # reads of counters send as much as they receive
        received, sent = (samples.rate(way, *self.labels, seconds=2.0) or 0.0 for way in ways)
        if received - sent >= DATA_RATE and samples.value(nvlink.LINKS, *self.labels):
            return False
        if self.quality is SignalQuality.GPM:
            return only_spins(second) and (second.payload or 0.0) < NOTHING
        wires = self.nvlink, self.fullest("pcie")
        quiet = all(wire is None or wire.ratio < NOTHING for wire in wires)
        drawn = self.power is not None and self.power < SPINNING_POWER
        return self.looks_busy and quiet and drawn

    @cached_property
    def clock_reference(self) -> float | None:
        """Expected ratio of the SM clock to its maximum if the GPU is not throttled. It is based on
        the highest clock at similar power in the last hour."""
        limit = self.context.samples.value(clocks.CLOCK_LIMIT, *self.labels, "sm")
        seen = self.history.clock
        if not seen and self.clocks_set >= self.context.thresholds.throttled:
            return self.clock  # as far as is known, a user requested this clock
        return min(1.0, seen / limit) if seen and limit else 1.0

    @cached_property
    def clocks_set(self) -> float:
        """Share of the last 3 s in which the clocks were limited by a setting of a user."""
        masks = self.throttle_masks
        seen = sum(bool(mask & clocks.APPLICATION_CLOCKS) for mask in masks)
        return seen / len(masks) if masks else 0.0

    @cached_property
    def stopped(self) -> frozenset[int]:
        """PIDs of processes on the GPU that a signal or a debugger has stopped."""
        return self.context.stopped.get(self.labels, frozenset())

    @cached_property
    def is_quiet(self) -> bool:
        """Whether the GPU is inactive and transfers no data."""
        least = self.context.thresholds.quiet
        if (self.activity or 0.0) >= least:
            return False
        wires = self.fullest("pcie"), self.nvlink
        return all(wire is None or wire.ratio < least for wire in wires)


PAYLOAD = {"transmit": nvlink.TRANSMITTED, "receive": nvlink.RECEIVED}
