"""Metrics of MIG instances. In MIG mode, most NVML calls are not supported for the whole GPU."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from agent.hardware import mig
from agent.hardware.gpm import Gpm, GpmId
from agent.metrics import declared_beside
from agent.model import FINAL, Absent
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import GpuContext

_METRICS = declared_beside(__file__)
INSTANCE_INFO = _METRICS["dgx_gpu_instance_info"]
USED = _METRICS["dgx_gpu_instance_memory_used_bytes"]
TOTAL = _METRICS["dgx_gpu_instance_memory_total_bytes"]
FREE = _METRICS["dgx_gpu_instance_memory_free_bytes"]
INSTANCE_PROCESSES = _METRICS["dgx_gpu_instance_processes"]
ACTIVE_SECONDS = _METRICS["dgx_gpu_instance_active_seconds_total"]
ACTIVITY = _METRICS["dgx_gpu_instance_activity_ratio"]
SM_ACTIVE = _METRICS["dgx_gpu_instance_sm_active_ratio"]
TENSOR_ACTIVE = _METRICS["dgx_gpu_instance_tensor_active_ratio"]
SHARES = {
    GpmId.GRAPHICS: ACTIVITY,
    GpmId.SM: SM_ACTIVE,
    GpmId.TENSOR: TENSOR_ACTIVE,
    GpmId.DRAM: _METRICS["dgx_gpu_instance_memory_bandwidth_ratio"],
}


@dataclass(slots=True)
class Instances:
    """Reads all MIG instances of a GPU. Each read lists them again."""

    gpu: GpuContext
    _gpm: dict[tuple[int, str], Gpm] = field(default_factory=dict)  # by instance ID and UUID

    def read(self, out: ReadOutput) -> None:
        there: dict[int, list[mig.MigDevice]] = {}
        for one in mig.devices(self.gpu.device):
            there.setdefault(one.gpu_instance, []).append(one)
        uuids = tuple(one.uuid for parts in there.values() for one in parts)
        self.gpu.gpu_processes.divided[self.gpu.device.labels] = uuids
        keys = {(number, parts[0].uuid) for number, parts in there.items()}
        for gone in self._gpm.keys() - keys:
            self._gpm.pop(gone).close()
        for number, parts in there.items():
            for metric, part in (
                (USED, self._read_memory),
                (INSTANCE_PROCESSES, self._read_processes),
                (ACTIVITY, self._read_activity),
            ):
                try:
                    part(out, number, parts)
                except Absent as absent:  # removed in the meantime, refused, or without GPM
                    if absent.reason in FINAL:
                        raise
                    out.absent(metric, absent, str(number))

    def _read_memory(self, out: ReadOutput, number: int, parts: list[mig.MigDevice]) -> None:
        label = str(number)
        for one in parts:
            out.add(INSTANCE_INFO, 1, label, str(one.compute_instance), one.profile, one.uuid)
        memory = self.gpu.device.memory(parts[0].handle)
        out.add(USED, memory.used, label)
        out.add(TOTAL, memory.total, label)
        out.add(FREE, memory.free, label)

    def _read_processes(self, out: ReadOutput, number: int, parts: list[mig.MigDevice]) -> None:
        found = [p.pid for one in parts for p in mig.processes(self.gpu.device, one.handle)]
        out.add(INSTANCE_PROCESSES, len(set(found)), str(number))

    def _read_activity(self, out: ReadOutput, number: int, parts: list[mig.MigDevice]) -> None:
        label = str(number)
        key = number, parts[0].uuid
        if key not in self._gpm:
            self._gpm[key] = Gpm(self.gpu.device, self.gpu.clock.monotonic, number)
        gpm = self._gpm[key]
        gpm.measurement()  # None if it was created or woken up too recently
        with suppress(Absent):
            out.add(ACTIVE_SECONDS, gpm.total(GpmId.GRAPHICS) / 100, label)
        latest = {} if gpm.latest is None else gpm.latest.values
        for which, metric in SHARES.items():
            if which in latest:
                out.add(metric, latest[which] / 100, label)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    if gpu_context.device.mig:
        run, every = Instances(gpu_context).read, intervals.PROCESSES
        yield gpu_context.read("instances", "list", _METRICS.values(), run, every, run_on_wake=True)
