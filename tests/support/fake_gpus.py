"""GPUs of a fake library under a frozen clock, and what the poller would keep of them."""

from dataclasses import dataclass, field

from agent.cli.assembly import gpm_of
from agent.hardware.device import NvmlDevice
from agent.hardware.files import RealFiles
from agent.hardware.host import Host
from agent.model import Metric, Reading, ReadKey, Reason, Snapshot
from agent.polling.gpu_state import GpuState
from agent.polling.gpu_watch import GpuWatch
from agent.polling.reads import Read, ReadCosts, ReadOutput
from agent.polling.worker import Finished
from agent.polling.xid_watch import XidWatch
from agent.sources import power, xid
from agent.sources.context import GpuContext
from agent.sources.table import gpu_reads
from tests.support.fake_nvml import FakeNvml
from tests.support.frozen_clock import FrozenClock


@dataclass
class GpuBench:
    """The GPUs of a fake library, and what the poller would keep of their readings."""

    gpus: int = 2
    gpm: bool = False
    clock: FrozenClock = field(default_factory=FrozenClock)
    readings: dict[ReadKey, Reading] = field(default_factory=dict)
    forgotten: list[ReadKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nvml = FakeNvml(self.clock, self.gpus, gpm=self.gpm)
        self.inventory = GpuWatch(lambda: self.nvml, self.build, self.clock, ReadCosts())
        self.counts = xid.XidCounts(lambda: iter(self.inventory.inventory.gpus))
        self.watch = XidWatch(self.inventory.events, self.counts)

    def build(self, device: NvmlDevice, state: GpuState, count: int) -> list[Read]:
        host = Host(RealFiles("/nonexistent"), psutil=None)  # type: ignore[arg-type]
        gpm = gpm_of(device, state, self.clock)
        return list(gpu_reads(GpuContext(device, state, self.clock, count, gpm, host)))

    def run(self, seconds: int = 1) -> "GpuBench":
        for _ in range(seconds):
            self.inventory.run(self.emit)
            self.clock.advance(1.0)
        return self

    def emit(self, finished: Finished) -> None:
        if isinstance(finished, ReadKey):
            self.forgotten.append(finished)
            self.readings.pop(finished)
        else:
            self.readings[finished.key] = finished

    @property
    def now(self) -> float:
        return self.clock.monotonic() - 1.0  # of the turn that just ended

    def values(self, metric: Metric) -> dict[tuple[str, ...], float]:
        snapshot = Snapshot(1, self.now, 0.0, self.readings)
        return {s.labels: s.value for s in snapshot.samples(self.now) if s.metric is metric}

    def reasons(self, metric: Metric) -> dict[tuple[str, ...], Reason]:
        snapshot = Snapshot(1, self.now, 0.0, self.readings)
        return {a.labels: a.reason for a in snapshot.absences(self.now) if a.metric is metric}

    def uuids(self, metric: Metric = power.POWER) -> list[str]:
        return sorted(uuid for _, uuid in self.values(metric))

    def xids(self) -> dict[tuple[str, ...], float]:
        out = ReadOutput(self.now)
        self.counts.read(out)
        return {s.labels: s.value for s in out.samples if s.metric is xid.ERRORS}
