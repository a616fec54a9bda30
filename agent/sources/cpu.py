"""Load of the host's cores."""

from collections.abc import Iterator

from agent.hardware.host import Host, Psutil
from agent.model import Absent, ReadKey, Reason, gauge
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import HostOptions

BUSY = gauge(
    "dgx_cpu_busy_ratio",
    "Share of all cores' time, 0-1, since the last tick that was neither idle nor waiting for I/O.",
    "psutil.cpu_times(), of /proc/stat",
)

IDLE = ("idle", "iowait")
ACTIVE = ("user", "nice", "system", "irq", "softirq", "steal")  # guest time is within user


class CpuBusy:
    """Difference between two readings of the cores' times; the first yields nothing."""

    def __init__(self, psutil: Psutil) -> None:
        self._psutil = psutil
        self._before: tuple[float, float] | None = None

    def read(self, out: ReadOutput) -> None:
        times = self._psutil.cpu_times()
        idle = sum(getattr(times, name, 0.0) for name in IDLE)
        active = sum(getattr(times, name, 0.0) for name in ACTIVE)
        before, self._before = self._before, (idle, active)
        if before is None:
            out.pending = True
            return
        # the kernel may take back a little iowait
        rested, worked = max(0.0, idle - before[0]), max(0.0, active - before[1])
        if rested + worked <= 0.0:
            raise Absent(Reason.UNKNOWN, "the CPU times have not moved since the last tick")
        out.add(BUSY, worked / (rested + worked))


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    busy = CpuBusy(host.psutil).read
    yield Read(ReadKey("cpu", "busy"), (BUSY,), busy, options.every, varies=True)
