"""Evidence on a GPU at a tick. Each figure is computed when a rule first asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from agent.diagnosis.active_share import (
    LINKS_AT_REST,
    NOTHING,
    ActiveSecond,
    only_spins,
    waiting_for_peer,
)
from agent.diagnosis.tick_context import GpuHistory, PathUse, TickContext
from agent.model import GpuKey, Metric, SignalQuality
from agent.sources import activity, clocks, nvlink, pcie, power, process, workload
from agent.specs.sheets import BOTH_WAYS

THROTTLE_BITS = {t.reason: t.bit for t in clocks.THROTTLES}

HEALTHY = ("power_cap", "sync_boost")
HOLDING_DOWN = tuple(t.reason for t in clocks.THROTTLES if t.reason not in HEALTHY)

SPINNING_POWER = 0.35
"""Share of the power limit below which a GPU at full utilisation only spins (0.18 on an H200); a
GPU that draws more works, so that GPM is silent if it reads 0 then."""

NO_HISTORY = GpuHistory()

SPAN = 6.0
"""Seconds over which the time of threads is divided, and work distinguished from waiting: 300
power samples."""

MESSAGES = 0.25e6
"""Bytes a second up to which a process's traffic counts as lines of a log, and a server's traffic
as requests. With 0.1 or 5 MB/s no load of the tapes is decided otherwise."""


@dataclass(eq=False)
class ProcessEvidence:
    """The processes of a GPU and their children; None is unknown, or not seen."""

    labels: tuple[str, ...]
    context: TickContext

    def rate(self, metric: Metric, *labels: str, seconds: float = SPAN) -> float | None:
        """Growth a second of a counter of the threads, the cgroup or the network namespace."""
        return self.context.samples.rate(metric, *self.labels, *labels, seconds=seconds)

    def mean(self, metric: Metric) -> float:
        return self.context.samples.mean(metric, *self.labels, seconds=SPAN) or 0.0

    def share(self, role: str, doing: str, seconds: float = SPAN) -> float:
        """Seconds a second that threads of a role spend so; 0 if that is not known."""
        return self.rate(workload.THREADS, role, doing, seconds=seconds) or 0.0

    def own(self, doing: str) -> float:
        """The same for the threads that give the GPU its work."""
        return self.share("launching", doing) + self.share("dispatching", doing)

    @cached_property
    def launching(self) -> float | None:
        """Cores that the launching threads use; None if they are not visible."""
        return self.rate(workload.THREADS, "launching", "running")

    @cached_property
    def workers(self) -> float:
        """Mean number of threads and processes beside them that are active."""
        return self.mean(workload.WORKERS)

    @cached_property
    def at_rest(self) -> bool | None:
        """True if they do nothing: next to no core, none in uninterruptible sleep; None if they
        cannot be seen."""
        rate = self.context.samples.rate
        known = [rate(workload.THREADS, *self.labels, one, "running") for one in workload.ROLES]
        return None if None in known else self._rests(sum(cores or 0.0 for cores in known))

    @property
    def rests_now(self) -> bool:
        """The same over the last two seconds; false if they are not visible."""
        if self.at_rest is None:
            return False
        return self._rests(sum(self.share(one, "running", seconds=2.0) for one in workload.ROLES))

    def _rests(self, cores: float) -> bool:
        return cores < workload.REST_CORES and not any(
            self.share(one, "blocked", seconds=3.0) for one in workload.ROLES
        )


@dataclass(eq=False)
class Evidence:
    """A GPU at a tick; None is unknown."""

    gpu: GpuKey
    context: TickContext
    history: GpuHistory = NO_HISTORY
    others: "Mapping[GpuKey, Evidence]" = field(default_factory=dict)  # every GPU at this tick

    def __post_init__(self) -> None:
        value, self.labels = self.context.samples.value, self.gpu.labels
        self.processes = value(process.PROCESSES, *self.labels)
        self.activity = value(activity.ACTIVITY, *self.labels)
        """Activity of this tick, which decides how much of the tick was lost."""

    @cached_property
    def host(self) -> ProcessEvidence:
        """Activity of its processes on the host."""
        return ProcessEvidence(self.labels, self.context)

    @cached_property
    def sm(self) -> float | None:
        return self.context.samples.mean(activity.SM_ACTIVE, *self.labels)

    @cached_property
    def power(self) -> float | None:
        """Share of the power limit."""
        drawn = self.context.samples.mean(power.POWER, *self.labels)
        limit = self.context.samples.value(power.POWER_LIMIT, *self.labels)
        return drawn / limit if drawn is not None and limit else None

    @cached_property
    def limit_lowered(self) -> bool:
        """True if the power limit is set below the board's default."""
        board = self.context.samples.value(power.DEFAULT_LIMIT, *self.labels)
        limit = self.context.samples.value(power.POWER_LIMIT, *self.labels)
        return board is not None and limit is not None and limit < board

    @cached_property
    def quality(self) -> SignalQuality:
        return SignalQuality.NVML if self.sm is None else SignalQuality.GPM

    @cached_property
    def work(self) -> float | None:
        """Amount of real work, 0-1: SM activity, else its share of the power limit."""
        return self.power if self.sm is None else self.sm

    @property
    def sm_underutilised(self) -> bool:
        """True if it does next to no arithmetic; false if nothing reports it."""
        limits = self.context.thresholds
        low = limits.sm_low if self.quality is SignalQuality.GPM else limits.power_low
        return self.work is not None and self.work < low

    @cached_property
    def mean_activity(self) -> float:
        """Mean activity over the window: a load near the threshold must not change its verdict
        often."""
        return self.context.samples.mean(activity.ACTIVITY, *self.labels) or 0.0

    @property
    def looks_busy(self) -> bool:
        """True if an engine is active nearly all the time; it may only be spinning."""
        return self.mean_activity >= self.context.thresholds.busy

    @cached_property
    def throttle_masks(self) -> list[int]:
        """NVML's clock event reasons at each look of the window."""
        return [int(look) for look in self.context.samples.recent(clocks.REASONS, *self.labels)]

    def throttled(self, *reasons: str) -> float:
        """Share of the window in which any of these held the clocks down."""
        masks, mask = self.throttle_masks, sum(THROTTLE_BITS[reason] for reason in reasons)
        seen = sum([bool(held & mask) for held in masks]) / len(masks) if masks else 0.0
        for reason in (one for one in reasons if not THROTTLE_BITS[one]):  # only counted
            counted = self.context.samples.rate(clocks.THROTTLE, *self.labels, reason)
            seen = max(seen, counted or 0.0)
        return seen

    @cached_property
    def sm_clock(self) -> float | None:
        """The SM clock (Hz), a mean over the window."""
        return self.context.samples.mean(clocks.CLOCK, *self.labels, "sm")

    @cached_property
    def clock(self) -> float | None:
        """The SM clock over its highest."""
        now = self.sm_clock
        limit = self.context.samples.value(clocks.CLOCK_LIMIT, *self.labels, "sm")
        return now / limit if now is not None and limit else None

    def path_usage(self, path: str) -> list[PathUse]:
        """The GPU's own wires of this kind, the fullest first."""
        return self.context.path_usage(path, self.gpu)

    def fullest(self, path: str) -> PathUse | None:
        return next(iter(self.path_usage(path)), None)

    @cached_property
    def pcie_rates(self) -> tuple[float | None, float | None]:
        """Bytes a second sent and received, over seconds: one reading may be of 20 ms alone."""
        rate = self.context.samples.rate
        sent = rate(pcie.TRANSMITTED, *self.labels, seconds=SPAN)
        return sent, rate(pcie.RECEIVED, *self.labels, seconds=SPAN)

    def share_of_slot(self, wire: PathUse) -> float:
        """Return the PCIe traffic relative to the slot's present capacity: a slot that is stuck at
        a lower generation carries half as much for each. If the traffic exceeds the capacity by the
        generation that was read, that generation is from a rest before."""
        now = self.context.samples.value(pcie.GENERATION, *self.labels)
        most = self.context.samples.value(pcie.GENERATION_LIMIT, *self.labels)
        if not now or not most or now >= most:
            return wire.ratio
        scaled = wire.ratio * 2.0 ** (most - now)
        return scaled if scaled <= 1.0 else wire.ratio

    @cached_property
    def nvlink(self) -> PathUse | None:
        """The fuller direction. Its counters are a mean over up to 10 s, GPM's payload is of this
        second."""
        wires = []
        for wire in self.path_usage("nvlink"):
            rate = self.context.samples.value(activity.NVLINK_RATE, *self.labels, wire.direction)
            wires.append(wire if rate is None else wire._replace(ratio=rate / wire.limit))
        return max(wires, key=lambda w: w.ratio, default=None)

    @cached_property
    def job(self) -> frozenset[GpuKey]:
        """The GPUs of its job, itself included."""
        return self.context.jobs.get(self.gpu, frozenset((self.gpu,)))

    @cached_property
    def peers(self) -> list["Evidence"]:
        """The other GPUs of the job."""
        return [self.others[one] for one in sorted(self.job - {self.gpu}) if one in self.others]

    @cached_property
    def works(self) -> float:
        """Share of time that it computes or its launching threads run beside it or wait for files;
        its collectives that spin for a peer do not count."""
        waited = max((waiting_for_peer(self.second, one.second) for one in self.peers), default=0.0)
        ran = max(0.0, (self.host.launching or 0.0) - self.second.activity)
        return min(1.0, self.second.activity - waited + ran + self.host.own("blocked"))

    @cached_property
    def pcie_peer_traffic(self) -> bool:
        """True if its PCIe traffic is that of the job's GPUs among themselves.

        Without NVLink a GPU's peer-to-peer traffic goes over PCIe: each byte sent is a byte that
        another GPU receives.
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
        """The same with the levels of its power, and of its DRAM activity while it works."""
        return replace(self.means, power=self.history.power, level=self.history.level)

    @cached_property
    def means(self) -> ActiveSecond:
        """Means of the last seconds, as far as they distinguish work from waiting and transfers."""
        samples, limit = self.context.samples, self.nvlink.limit if self.nvlink else None
        rate = activity.NVLINK_RATE
        rates = {way: samples.mean(rate, *self.labels, way, seconds=SPAN) for way in PAYLOAD}
        if None in rates.values():  # without GPM: the rates of the byte counters
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
        )

    @property
    def spins(self) -> bool:
        """True if its kernels only wait: they are active, and neither work nor transfer."""
        second = self.means
        if self.quality is SignalQuality.GPM:
            return only_spins(second) and (second.payload or 0.0) < NOTHING
        quiet = self.nvlink is None or self.nvlink.ratio < NOTHING
        drawn = self.power is not None and self.power < SPINNING_POWER
        return self.looks_busy and quiet and drawn

    @cached_property
    def clock_reference(self) -> float | None:
        """The SM clock that it would have, over its highest: the clock at like power without being
        held down, if that was seen within the hour."""
        limit = self.context.samples.value(clocks.CLOCK_LIMIT, *self.labels, "sm")
        seen = self.history.clock
        if not seen and self.clocks_set >= self.context.thresholds.throttled:
            return self.clock  # as it was asked for, as far as anybody can report
        return min(1.0, seen / limit) if seen and limit else 1.0

    @cached_property
    def clocks_set(self) -> float:
        """Share of the window in which the clocks stood at a value that somebody had set."""
        masks = self.throttle_masks
        seen = sum(bool(mask & clocks.APPLICATION_CLOCKS) for mask in masks)
        return seen / len(masks) if masks else 0.0

    @cached_property
    def stopped(self) -> frozenset[int]:
        """Its processes that a signal or a debugger has stopped."""
        return self.context.stopped.get(self.labels, frozenset())

    @cached_property
    def is_quiet(self) -> bool:
        """True if nothing moves on the GPU, nor to and from it."""
        least = self.context.thresholds.quiet
        if (self.activity or 0.0) >= least:
            return False
        wires = self.fullest("pcie"), self.nvlink
        return all(wire is None or wire.ratio < least for wire in wires)

    @property
    def nvlink_active(self) -> bool | None:
        """True if NVLink carries anything; None if that is not known."""
        return None if self.nvlink is None else self.nvlink.ratio > LINKS_AT_REST


PAYLOAD = {"transmit": nvlink.TRANSMITTED, "receive": nvlink.RECEIVED}
