"""GPUs of a simulated library under a frozen clock, and what the poller would keep of them."""

from dataclasses import dataclass, field
from typing import Any

import pynvml

from agent.cli.assembly import gpm_of
from agent.hardware.device import NvmlDevice
from agent.hardware.files import RealFiles
from agent.hardware.host import Host
from agent.model import Metric, Reading, ReadKey, Reason, Snapshot
from agent.polling.gpu_state import GpuState
from agent.polling.gpu_watch import GpuWatch
from agent.polling.reads import Read, ReadCosts, ReadOutput
from agent.polling.worker import Finished
from agent.simulator import SimulatedSystem
from agent.simulator.machine import Machine
from agent.simulator.nvml import SimulatedNvml
from agent.sources import power, xid
from agent.sources.context import GpuContext
from agent.sources.table import gpu_reads
from agent.sources.xid import XidWatch
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import first_gpus

NOT_SUPPORTED, NOT_FOUND, TIMEOUT, LOST = 3, 6, 10, 15


class OddNvml(SimulatedNvml):
    """A simulated library in which a test replaces answers: by the name of the function without
    `nvmlDeviceGet` (or what is made of the right one and the arguments), fields by id and scope,
    GPM's means by id, where None is no answer."""

    def __init__(self, machine: Machine) -> None:
        self.answers: dict[str, Any] = {}
        self.fields: dict[tuple[int, int], int] = {}
        self.means: dict[int, float | None] = {}
        self.calls: list[str] = []
        self.missing = False  # the driver is not there
        super().__init__(machine)

    def nvmlInit(self) -> None:  # noqa: N802
        if self.missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        super().nvmlInit()

    def _ask(self, name: str, *args: Any) -> Any:
        self.calls.append(name)
        right = super()._ask(name, *args)
        if name == "nvmlDeviceGetFieldValues":
            for entry in right:
                if (own := self.fields.get((entry.fieldId, entry.scopeId))) is not None:
                    entry.value.ullVal = own
        elif name == "nvmlGpmMetricsGet":
            for slot in right.metrics[: right.numMetrics]:
                if slot.metricId in self.means:
                    mean = self.means[slot.metricId]
                    slot.value, slot.nvmlReturn = mean or 0.0, NOT_SUPPORTED * (mean is None)
        answer = self.answers.get(name.removeprefix("nvmlDeviceGet"), right)
        return answer(right, *args) if callable(answer) else answer


@dataclass
class GpuBench:
    """The GPUs of a simulated library, and what the poller would keep of their readings."""

    gpus: int = 2
    gpm: bool = False
    system: str = "dgx-a100@580"  # where it has no GPM
    clock: FrozenClock = field(default_factory=FrozenClock)
    readings: dict[ReadKey, Reading] = field(default_factory=dict)
    forgotten: list[ReadKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        system = "dgx-h100" if self.gpm else self.system
        self.machine = SimulatedSystem(first_gpus(f"{system}:training", self.gpus), self.clock)
        for gpu in self.machine.gpus:
            gpu.uuid = f"GPU-{gpu.index}"
        self.nvml = OddNvml(self.machine)
        self.inventory = GpuWatch(lambda: self.nvml, self.build, self.clock, ReadCosts())
        self.counts = xid.XidCounts(lambda: self.inventory.inventory)
        self.watch = XidWatch(self.inventory.events, self.counts)

    def build(self, device: NvmlDevice, state: GpuState, count: int) -> list[Read]:
        host = Host(RealFiles("/nonexistent"), psutil=None)
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
        return {s.labels: s.value for s in out.samples if s.metric is xid.XID_ERRORS}
