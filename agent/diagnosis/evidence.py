"""Evidence about a GPU in a tick, for rules. Values are computed when a rule first needs them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from agent.diagnosis.active_share import NOTHING, ActiveSecond, ActiveShares, divide, only_spins
from agent.diagnosis.tick_context import GpuHistory, PathUse, TickContext
from agent.model import GpuKey, Metric, SignalQuality
from agent.series import KEPT, WINDOW_SECONDS
from agent.sources import activity, clocks, host, nvlink, pcie, power, process, workload
from agent.specs.sheets import BOTH_WAYS

THROTTLE_BITS = {t.reason: t.bit for t in clocks.THROTTLES}

HEALTHY = ("power_cap", "sync_boost")
HOLDING_DOWN = tuple(t.reason for t in clocks.THROTTLES if t.reason not in HEALTHY)

SPINNING_POWER = 0.35
"""Fraction of the power limit below which a fully utilized GPU only spins (it draws 0.18 on an
H200). A GPU that draws more power does real work, so a GPM activity of 0 is invalid."""

SPAN = 6.0
"""Window in seconds over which most evidence is averaged. It contains 300 power samples."""

MESSAGES = 0.25e6
"""Bytes per second below which data that processes read or write counts as log lines, and data that
they receive as requests. Some servers receive more (4 and 12 MB/s of sounds and recordings)."""

DATA_RATE = 5e6
"""Bytes per second above which traffic counts as data for the GPU. With the value of MESSAGES, one
more of 112 recorded GPUs would be correct, but unrelated traffic would count. Over PCIe, a GPU that
only spins receives 0.2 to 1 MB/s, and one that launches 250,000 small kernels a second 40 MB/s."""

KERNEL_RATE = 1.2e9
"""Bytes per second that a thread copies to newly allocated memory, which the Linux kernel has to
map (1.0 to 1.2 GB/s). The value is also a lower limit of the rate at which the kernel receives data
from the network (3.3 to 6 GB/s on an H100 host)."""


@dataclass(eq=False)
class ProcessEvidence:
    """Evidence about a GPU's processes and their children. Values are None if they are unknown."""

    labels: tuple[str, ...]
    context: TickContext

    def rate(self, metric: Metric, *labels: str, seconds: float = SPAN) -> float | None:
        """Return the increase per second of a counter of the GPU's processes or their cgroup."""
        return self.context.samples.rate(metric, *self.labels, *labels, seconds=seconds)

    def mean(self, metric: Metric) -> float:
        return self.context.samples.mean(metric, *self.labels, seconds=SPAN) or 0.0

    def share(self, role: str, doing: str, seconds: float = SPAN) -> float:
        """Return the seconds per second that the threads with this role are in state `doing`."""
        return self.rate(workload.THREADS, role, doing, seconds=seconds) or 0.0

    def own(self, doing: str) -> float:
        """Return the sum of `share` over launching and dispatching threads."""
        return self.share("launching", doing) + self.share("dispatching", doing)

    def asleep(self, *roles: str) -> float:
        """Return the seconds per second for which threads with the given roles wait for files. The
        kernel counts the time for which cores are idle because of such waits, and the agent samples
        which threads wait. The count omits waits during other work and includes other programs, so
        it is limited to 0.5 to 2 times the sampled time."""
        seen = sum(self.share(role, "blocked") for role in roles)
        samples, longer = self.context.samples, 0.0
        counted = samples.rate(host.IO_WAIT, seconds=SPAN)
        if not counted:  # some Linux kernels do not count this time
            counts = samples.value(host.IO_WAIT) or self.rate(workload.CGROUP_STALLED, "io") == 0.0
            return 0.0 if counts and counted is not None else seen
        if self.context.blocked:
            longer = sum(self.share(role, "blocked", seconds=KEPT) for role in roles)
            counted *= longer / self.context.blocked
        return sorted((seen / 2, counted, 2 * longer))[1]

    @cached_property
    def launching(self) -> float | None:
        """Number of cores that launching threads use, or None if the threads are hidden."""
        return self.rate(workload.THREADS, "launching", "running")

    @cached_property
    def workers(self) -> float:
        """Mean number of active workers: threads and processes that launch no kernels."""
        return self.mean(workload.WORKERS)

    @cached_property
    def arriving(self) -> float:
        """Bytes per second received over the network, or 0 if this is too little to be data for the
        GPU. The last 2 s are also checked, because the 6 s mean may include an ended job."""
        rates = [self.rate(workload.RECEIVED, seconds=span) or 0.0 for span in (SPAN, 2.0)]
        return rates[0] if min(rates) >= DATA_RATE else 0.0

    @cached_property
    def busiest(self) -> float:
        """Share of time for which the busiest worker runs, except in the kernel to move data that
        arrives over the network, which it may serve to all ranks."""
        running, kernel = self.share("working", "running"), self.share("working", "system")
        moving = min(running, kernel, self.arriving / KERNEL_RATE)
        return self.mean(workload.BUSIEST) * (1.0 - moving / running if running else 1.0)

    def rests(self, seconds: float = WINDOW_SECONDS) -> bool:
        """Return whether the processes used almost no CPU time in the last `seconds` seconds, and
        had no thread in uninterruptible sleep. Return false if the processes are not visible."""
        rates = [
            self.rate(workload.THREADS, one, "running", seconds=seconds) for one in workload.ROLES
        ]
        known = [cores for cores in rates if cores is not None]
        asleep = any(self.share(one, "blocked", seconds=3.0) for one in workload.ROLES)
        return len(known) == len(rates) and sum(known) < workload.REST_CORES and not asleep


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
        """Bytes per second sent and received, averaged over several seconds because a single
        reading may cover only 20 ms."""
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
        ran = max(0.0, (self.host.launching or 0.0) - self.second.activity)
        works = self.second.activity + ran + self.blocked + self.host.busiest
        return min(1.0, works) - self.by_links.waiting

    @cached_property
    def blocked(self) -> float:
        """Share of time for which a launching thread waits for files. If no worker or other rank
        waits for files, the share is at least that for which the cgroup's tasks waited for I/O."""
        own, stalled = self.host.asleep("launching", "dispatching"), 0.0
        others = [one.host.own("blocked") for one in self.peers] if self.has_ranks else []
        if not any((*others, self.host.share("working", "blocked", seconds=KEPT))):
            stalled = self.host.rate(workload.CGROUP_STALLED, "io") or 0.0
        if stalled and not self.context.blocked:  # too short for sampling
            counted = self.context.samples.rate(host.IO_WAIT, seconds=SPAN) or 0.0
            own = min(counted, 1.0 / KEPT)
        return max(own, stalled)

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
