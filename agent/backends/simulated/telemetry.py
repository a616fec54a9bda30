"""What a GPU does now: the getters of NVML."""

from typing import Any

import pynvml

from agent.backends.simulated import refusals
from agent.backends.simulated.gate import Facade, blocking_call, device_call, refuse
from agent.backends.simulated.gpu import PCIE_OVERHEAD, Gpu

UNSIGNED_INT = 1
POWER, UTILISATION, MEMORY, ENCODER, DECODER = range(5)
CLOCK_SAMPLES = (5, 6)
"""Sample types of clocks: known, but the buffers stay empty."""

PCIE_WINDOW = 0.02
"""Seconds that the driver counts PCIe bytes for, blocking the caller."""

NO_INSTANCE = 0xFFFFFFFF
VOLATILE = 0


class Telemetry(Facade):
    """Utilisation, memory, power, clocks, PCIe, processes, errors."""

    @device_call
    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> Any:
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu, rates.memory = gpu.utilisation, gpu.controller
        return rates

    @device_call
    def nvmlDeviceGetSamples(self, gpu: Gpu, kind: int, last_seen: int) -> tuple[int, list[Any]]:
        if kind not in (*range(5), *CLOCK_SAMPLES):
            refuse(refusals.INVALID_ARGUMENT)
        if kind in (UTILISATION, MEMORY, ENCODER, DECODER) and gpu.mig:
            refuse(refusals.NOT_SUPPORTED)
        timed = ((self.world.micros(at), value) for at, value in _buffer(gpu, kind))
        samples = [_sample(at, value) for at, value in timed if at > last_seen]
        if not samples:
            refuse(refusals.NOT_FOUND)
        return UNSIGNED_INT, samples

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        return self._memory_v2(handle, version) if version else self._memory_v1(handle)

    def _memory_v1(self, handle: Any) -> Any:
        gpu = self.gate.device("nvmlDeviceGetMemoryInfo", handle)
        memory = pynvml.c_nvmlMemory_t()
        memory.total = gpu.model.memory
        memory.used = gpu.memory_used + gpu.model.reserved
        memory.free = memory.total - memory.used
        return memory

    def _memory_v2(self, handle: Any, version: int) -> Any:
        gpu = self.gate.device("nvmlDeviceGetMemoryInfo_v2", handle)
        if version != pynvml.nvmlMemory_v2:
            refuse(refusals.VERSION_MISMATCH)
        memory = pynvml.c_nvmlMemory_v2_t()
        memory.version = version
        memory.total, memory.reserved = gpu.model.memory, gpu.model.reserved
        memory.used = gpu.memory_used
        memory.free = memory.total - memory.reserved - memory.used
        return memory

    @device_call
    def nvmlDeviceGetPowerUsage(self, gpu: Gpu) -> int:
        return round(gpu.watts * 1000)

    @device_call
    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Gpu) -> int:
        return int(gpu.meter.read("energy", self.world.now) * 1000)

    @device_call
    def nvmlDeviceGetTemperature(self, gpu: Gpu, sensor: int) -> int:
        if sensor != pynvml.NVML_TEMPERATURE_GPU:
            refuse(refusals.INVALID_ARGUMENT)
        return round(gpu.celsius)

    @device_call
    def nvmlDeviceGetMarginTemperature(self, gpu: Gpu) -> int:
        limit = gpu.model.thresholds.gpu_max or gpu.model.thresholds.slowdown
        return limit - round(gpu.celsius)

    @device_call
    def nvmlDeviceGetClockInfo(self, gpu: Gpu, kind: int) -> int:
        return _clock(kind, gpu.sm_clock, gpu.memory_clock)

    @device_call
    def nvmlDeviceGetMaxClockInfo(self, gpu: Gpu, kind: int) -> int:
        return _clock(kind, gpu.model.clocks.sm, gpu.model.clocks.memory)

    @device_call
    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Gpu) -> int:
        return gpu.reasons

    @device_call
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Gpu) -> int:
        return gpu.reasons

    @device_call
    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: Gpu) -> int:
        return gpu.pcie_generation

    @device_call
    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: Gpu) -> int:
        return gpu.width

    @device_call
    def nvmlDeviceGetPcieReplayCounter(self, gpu: Gpu) -> int:
        return int(gpu.meter.read("pcie_replays", self.world.now))

    @blocking_call(PCIE_WINDOW)
    def nvmlDeviceGetPcieThroughput(self, gpu: Gpu, counter: int) -> int:
        names = {0: "pcie_tx", 1: "pcie_rx"}
        if counter not in names:
            refuse(refusals.INVALID_ARGUMENT)
        return int(gpu.meter.rates.get(names[counter], 0.0) * PCIE_OVERHEAD / 1000)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        try:
            return self._processes("nvmlDeviceGetComputeRunningProcesses", handle)
        except pynvml.NVMLError_FunctionNotFound as error:
            raise pynvml.NVMLLibraryMismatchError(
                "Unversioned function called and the pyNVML version does not match the NVML lib"
            ) from error

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v2", handle)

    def _processes(self, function: str, handle: Any) -> list[Any]:
        gpu = self.gate.device(function, handle)
        return [
            pynvml.nvmlFriendlyObject(
                {
                    "pid": process.pid,
                    "usedGpuMemory": process.memory,
                    "gpuInstanceId": NO_INSTANCE,
                    "computeInstanceId": NO_INSTANCE,
                }
            )
            for process in gpu.processes
        ]

    @device_call
    def nvmlDeviceGetTotalEccErrors(self, gpu: Gpu, severity: int, lifetime: int) -> int:
        if severity not in (0, 1) or lifetime not in (0, 1):
            refuse(refusals.INVALID_ARGUMENT)
        return ecc_errors(gpu, self.world.now, severity, lifetime)

    @device_call
    def nvmlDeviceGetRemappedRows(self, gpu: Gpu) -> tuple[int, int, int, int]:
        return (0, int(gpu.remap_failed), 0, int(gpu.remap_failed))

    @device_call
    def nvmlDeviceGetRetiredPages(self, gpu: Gpu, cause: int) -> list[int]:
        if cause not in (0, 1):
            refuse(refusals.INVALID_ARGUMENT)
        return []

    @device_call
    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: Gpu) -> int:
        return 0


def ecc_errors(gpu: Gpu, now: float, severity: int, lifetime: int) -> int:
    """Errors of severity 0 (corrected) or 1; some GPUs corrected one in an earlier life."""
    if not severity:
        return 0 if lifetime == VOLATILE else gpu.index % 2
    return int(gpu.meter.read("ecc", now))


def _buffer(gpu: Gpu, kind: int) -> list[tuple[float, int]]:
    if kind == POWER:
        return [(at, round(watts * 1000)) for at, watts in gpu.rings.power()]
    place = {UTILISATION: 1, MEMORY: 2}.get(kind)
    if kind in CLOCK_SAMPLES:
        return []
    return [(s.at, int(s[place]) if place else 0) for s in gpu.rings.utilisation]


def _sample(at: int, value: int) -> Any:
    sample = pynvml.c_nvmlSample_t()
    sample.timeStamp = at
    sample.sampleValue.uiVal = value
    return sample


def _clock(kind: int, sm: int, memory: int) -> int:
    """Graphics, SM, memory, video: the video clock runs at four fifths of the SM's."""
    clocks = (sm, sm, memory, sm * 4 // 5)
    if not 0 <= kind < len(clocks):
        refuse(refusals.INVALID_ARGUMENT)
    return clocks[kind]
