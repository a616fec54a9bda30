"""What one GPU shows at one tick. Each figure is drawn when a rule first asks for it."""

from dataclasses import dataclass
from functools import cached_property

from agent.diagnosis.scene import Past, Scene, Wire
from agent.diagnosis.verdict import Grade
from agent.diagnosis.window import Labels
from agent.limits import BOTH
from agent.sources import activity, clocks, nvlink, power, process, workload

THROTTLE_BITS = {t.reason: t.bit for t in clocks.THROTTLES}

NO_PAST = Past()


@dataclass(eq=False)
class Evidence:
    """One GPU at one tick; None is what is not known."""

    gpu: Labels  # index, UUID
    scene: Scene
    past: Past = NO_PAST

    @cached_property
    def processes(self) -> float | None:
        return self.scene.window.value(process.PROCESSES, *self.gpu)

    @cached_property
    def activity(self) -> float | None:
        """Of this tick: it decides how much of the tick was lost."""
        return self.scene.window.value(activity.ACTIVITY, *self.gpu)

    @cached_property
    def sm(self) -> float | None:
        return self.scene.window.mean(activity.SM_ACTIVE, *self.gpu)

    @cached_property
    def power(self) -> float | None:
        """Share of the power limit."""
        drawn = self.scene.window.mean(power.POWER, *self.gpu)
        limit = self.scene.window.value(power.POWER_LIMIT, *self.gpu)
        return drawn / limit if drawn is not None and limit else None

    @cached_property
    def draws_its_fill(self) -> bool:
        """Whether it draws about what its board is made for: dense arithmetic at the full power of
        an H100 runs at 63 % of the highest clock, and is health."""
        drawn = self.scene.window.mean(power.POWER, *self.gpu)
        board = self.scene.window.value(power.DEFAULT_LIMIT, *self.gpu)
        limit = board or self.scene.window.value(power.POWER_LIMIT, *self.gpu)
        if not drawn or not limit:
            return False
        return drawn / limit >= self.scene.thresholds.power_full

    @cached_property
    def grade(self) -> Grade:
        return Grade.NVML if self.sm is None else Grade.GPM

    @cached_property
    def work(self) -> float | None:
        """How much the GPU really does, 0-1: SM activity, else its share of the power limit."""
        return self.power if self.sm is None else self.sm

    @property
    def works_little(self) -> bool:
        """Whether next to no arithmetic is done; false where nothing tells."""
        limits = self.scene.thresholds
        low = limits.sm_low if self.grade is Grade.GPM else limits.power_low
        return self.work is not None and self.work < low

    @cached_property
    def mean_activity(self) -> float:
        """Over the window: a load near the threshold must not be judged now so, now so."""
        return self.scene.window.mean(activity.ACTIVITY, *self.gpu) or 0.0

    @property
    def looks_busy(self) -> bool:
        """Whether an engine is active nearly all the time: it may only be spinning."""
        return self.mean_activity >= self.scene.thresholds.busy

    def throttled(self, *reasons: str) -> float:
        """Share of the window in which one of these held the clocks down."""
        looks = self.scene.window.recent(clocks.REASONS, *self.gpu)
        mask = sum(THROTTLE_BITS[reason] for reason in reasons)
        seen = sum(bool(int(look.value) & mask) for look in looks) / len(looks) if looks else 0.0
        unseen = (r for r in reasons if not THROTTLE_BITS[r])  # only a counter tells
        counted = (self.scene.window.rate(clocks.THROTTLE, *self.gpu, r) or 0.0 for r in unseen)
        return max([seen, *counted])

    @cached_property
    def clock(self) -> float | None:
        """The SM clock over its highest."""
        now = self.scene.window.mean(clocks.CLOCK, *self.gpu, "sm")
        limit = self.scene.window.value(clocks.CLOCK_LIMIT, *self.gpu, "sm")
        return now / limit if now is not None and limit else None

    def wires(self, path: str) -> list[Wire]:
        """The GPU's own wires of this kind, the fullest first."""
        return sorted(self.scene.wires(path, *self.gpu), key=lambda w: w.ratio, reverse=True)

    def fullest(self, path: str) -> Wire | None:
        return next(iter(self.wires(path)), None)

    @cached_property
    def nvlink(self) -> Wire | None:
        """The fuller direction. The counters are a mean over up to 10 s: where GPM's payload of
        this second is far from them, it is right."""
        payload = {w: self.scene.window.value(activity.NVLINK_RATE, *self.gpu, w) for w in BOTH}
        wires = [_of_now(wire, payload[wire.direction]) for wire in self.wires("nvlink")]
        return max(wires, key=lambda w: w.ratio, default=None)

    @cached_property
    def job(self) -> frozenset[Labels]:
        """The GPUs of its job, itself included."""
        return self.scene.jobs.get(self.gpu, frozenset((self.gpu,)))

    @cached_property
    def mates(self) -> list["Evidence"]:
        """The other GPUs of the job."""
        pasts = self.scene.pasts
        others = sorted(self.job - {self.gpu})
        return [Evidence(one, self.scene, pasts.get(one, NO_PAST)) for one in others]

    @cached_property
    def best_mate(self) -> "Evidence | None":
        """The GPU of the job that does most."""
        known = [mate for mate in self.mates if mate.work is not None]
        return max(known, key=lambda mate: mate.work or 0.0, default=None)

    @cached_property
    def copies_to_mates(self) -> bool:
        """Whether its PCIe traffic is that of the job's GPUs among themselves.

        Without NVLink a GPU's peer-to-peer traffic goes over PCIe: what one sends, others receive.
        """
        if self.scene.window.value(nvlink.LINKS, *self.gpu):
            return False
        mine = {w.direction: w.ratio for w in self.wires("pcie")}
        least = self.scene.thresholds.communicating
        return any(
            min(mine.get(way, 0.0), theirs.ratio) >= least
            for mate in self.mates
            for theirs in mate.wires("pcie")
            for way in BOTH
            if way != theirs.direction
        )

    @property
    def is_quiet(self) -> bool:
        """Whether nothing moves on the GPU, nor to and from it."""
        least = self.scene.thresholds.quiet
        wires = [self.fullest("pcie"), self.nvlink]
        ratios = [self.activity or 0.0, *(w.ratio for w in wires if w is not None)]
        return max(ratios) < least

    @property
    def talks(self) -> bool | None:
        """Whether NVLink carries anything; None where that is not known."""
        return None if self.nvlink is None else self.nvlink.ratio * self.nvlink.limit > TALK

    # the processes behind it

    @cached_property
    def launcher_cores(self) -> float | None:
        """Cores that the GPU's own processes use."""
        return self.scene.window.value(workload.LAUNCHER_CORES, *self.gpu)

    @cached_property
    def loaders(self) -> int:
        """Processes below them that do anything."""
        return int(self.scene.window.value(workload.LOADERS, *self.gpu) or 0)

    @cached_property
    def waiting(self) -> float | None:
        """Share of time in uninterruptible sleep, of the loaders or of a process that has none."""
        metric = workload.LOADERS_WAITING if self.loaders else workload.LAUNCHER_WAITING
        return self.scene.window.value(metric, *self.gpu)

    @cached_property
    def running(self) -> float | None:
        """Share of time for which each loader runs, or would."""
        return self.scene.window.value(workload.LOADERS_RUNNING, *self.gpu)

    @cached_property
    def cores(self) -> float | None:
        """Cores that launchers and loaders use together."""
        if self.launcher_cores is None:
            return None
        loaders = self.scene.window.value(workload.LOADERS_CORES, *self.gpu) or 0.0
        return self.launcher_cores + loaders

    @property
    def takes_part(self) -> bool:
        """Whether its processes do anything that the host could hold up; true where they cannot
        be seen. A server that waits for requests does not starve by somebody else's backup."""
        least = self.scene.thresholds.takes_part
        return self.cores is None or self.cores >= least or bool(self.waiting)

    @cached_property
    def allowed_cores(self) -> float | None:
        """Cores that they may use."""
        return self.scene.window.value(workload.ALLOWED_CORES, *self.gpu)

    @cached_property
    def hidden(self) -> str:
        """Why the processes of this GPU cannot be seen; empty where they can."""
        return self.scene.window.refusal(workload.LAUNCHER_CORES, *self.gpu)


def _of_now(wire: Wire, payload: float | None) -> Wire:
    """The wire with the traffic of this second, where GPM tells it and the counter is stale."""
    if payload is None:
        return wire
    now = payload / wire.limit
    consistent = LEAST_PAYLOAD * wire.ratio <= now <= MOST_PAYLOAD * wire.ratio
    return wire if consistent else wire._replace(ratio=now)


LEAST_PAYLOAD, MOST_PAYLOAD = 0.6, 1.2
"""Payload over wire while both tell of the same traffic: 0.86 was measured on full links."""

TALK = 1e6
"""Bytes per second on NVLink above which GPUs talk to one another."""
