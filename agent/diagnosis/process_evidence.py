"""Evidence about the processes of a GPU in a tick: their threads, cgroup, and TCP sockets."""

from dataclasses import dataclass
from functools import cached_property

from agent.diagnosis.tick_context import TickContext
from agent.jobs.job_sockets import EVERY, MESSAGES, WAYS
from agent.model import Metric
from agent.series import KEPT, WINDOW_SECONDS
from agent.sources import activity, host, workload

SPAN = 6.0
"""Window in seconds over which most evidence is averaged. It contains 300 power samples."""

DATA_RATE = 5e6
"""Bytes per second above which traffic counts as data for the GPU. Over PCIe, a GPU that only spins
receives 0.2 to 1 MB/s, and one that launches 250,000 small kernels a second 40 MB/s."""

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
    def sockets(self) -> dict[str, float]:
        """Bytes per second of the job's TCP sockets by way (see `workload.SOCKETS`), or nothing if
        they are unknown, or if the job begins one at every second look, as most are missed then."""
        found = {way: self.rate(workload.SOCKETS, way) for way in WAYS}
        known = {way: rate for way, rate in found.items() if rate is not None}
        return known if len(known) == len(WAYS) and 2 * EVERY * known["begun"] < 1.0 else {}

    def received(self, seconds: float = SPAN) -> float | None:
        """Return the bytes per second that the job's sockets receive, except requests that it
        answers. If they are unknown, return those of its network namespace."""
        if not self.sockets:
            return self.rate(workload.RECEIVED, seconds=seconds)
        ways = ("opened", "exchanged") if self.answers else ("opened", "exchanged", "accepted")
        return sum(self.rate(workload.SOCKETS, way, seconds=seconds) or 0.0 for way in ways)

    @cached_property
    def requests(self) -> float | None:
        """Bytes per second that may be requests: all or, if the job's sockets are known, those on
        connections that it accepted. None if data arrives in another way."""
        if not self.sockets:
            return self.rate(workload.RECEIVED)
        data = max(self.sockets["opened"], self.sockets["exchanged"]) >= MESSAGES
        return None if data else self.sockets["accepted"]

    @cached_property
    def answers(self) -> bool:
        """Whether the job answers all that it receives, and owes no answer for half of the time in
        which its GPU and its launching threads rest. A trainer that is sent data and confirms them
        owes one while they come, or has a backward pass (PyTorch) or threads of XLA."""
        samples, seen = self.context.samples, {"seconds": KEPT}
        sent, settled = (self.rate(workload.SOCKETS, w, **seen) for w in ("answered", "settled"))
        active = samples.mean(activity.ACTIVITY, *self.labels, seconds=SPAN) or 0.0
        rests = max(0.0, 1.0 - max(active, self.launching or 0.0))
        trains = samples.value(workload.TRAINING, *self.labels) != 0.0
        trains |= self.share("dispatching", "running", **seen) > 0.0
        often = EVERY * (settled or 0.0) >= rests / 2
        return bool(self.sockets and sent) and self.requests is not None and often and not trains

    @cached_property
    def arriving(self) -> float:
        """Bytes per second received over the network, or 0 if this is too little to be data for the
        GPU. The last 4 s are also checked, because the 6 s mean may include an ended job. They
        contain two looks at sockets."""
        rates = [self.received(span) or 0.0 for span in (SPAN, 2 * EVERY)]
        return rates[0] if min(rates) >= DATA_RATE else 0.0

    @cached_property
    def exchanged(self) -> float:
        """Share of `arriving` that comes from other processes of the job."""
        return self.sockets.get("exchanged", 0.0) / self.arriving if self.arriving else 0.0

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
