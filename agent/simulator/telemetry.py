"""What a GPU does now: the getters of NVML."""

from collections.abc import Iterable
from typing import Any, cast

import pynvml

from agent.hardware.buffers import SAMPLE
from agent.simulator import refusals
from agent.simulator.call_guard import NvmlPart, blocking_call, device_call, refuse
from agent.simulator.gpu import PCIE_OVERHEAD, SimulatedGpu, SimulatedGpuProcess
from agent.simulator.gpu_models import KEPLER

UNSIGNED_INT = 1
POWER, UTILISATION, MEMORY, ENCODER, DECODER = range(5)
CLOCK_SAMPLES = (5, 6)
"""Sample types of clocks: known, but the buffers stay empty."""

PCIE_WINDOW = 0.02
"""Seconds that the driver counts PCIe bytes for, blocking the caller."""

MEDIA_PERIOD = 167_000
"""Microseconds that the utilisation of an engine is the mean of; no scenario plays videos."""

FASTEST, GEFORCE_LOADED, RESTING = 0, 2, 8
"""Performance states: GeForce and TITAN boards compute in P2, and rest in P8."""

NO_INSTANCE = 0xFFFFFFFF
VOLATILE = 0


class SimulatedTelemetry(NvmlPart):
    """Utilisation, memory, power, clocks, PCIe, processes, errors."""

    @device_call
    def nvmlDeviceGetUtilizationRates(self, gpu: SimulatedGpu) -> Any:
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu, rates.memory = (
            gpu.buffers.percent(name, self.machine.now) for name in ("utilisation", "controller")
        )
        return rates

    @device_call
    def nvmlDeviceGetDecoderUtilization(self, gpu: SimulatedGpu) -> list[int]:
        return [0, MEDIA_PERIOD]

    @device_call
    def nvmlDeviceGetEncoderUtilization(self, gpu: SimulatedGpu) -> list[int]:
        return [0, MEDIA_PERIOD]

    @device_call
    def nvmlDeviceGetJpgUtilization(self, gpu: SimulatedGpu) -> list[int]:
        return [0, MEDIA_PERIOD]

    @device_call
    def nvmlDeviceGetOfaUtilization(self, gpu: SimulatedGpu) -> list[int]:
        return [0, MEDIA_PERIOD]

    @device_call
    def nvmlDeviceGetSamples(
        self, gpu: SimulatedGpu, kind: int, last_seen: int
    ) -> tuple[int, list[Any]]:
        if kind not in (*range(5), *CLOCK_SAMPLES):
            refuse(refusals.INVALID_ARGUMENT)
        if kind in (UTILISATION, MEMORY, ENCODER, DECODER) and gpu.mig:
            refuse(refusals.NOT_SUPPORTED)
        now, seen = self.machine.now, self.machine.moment(last_seen)
        buffer = _buffer(gpu, kind, now, seen)
        timed = [(self.machine.micros(at), value) for at, value in buffer]
        samples = [_sample(at, value) for at, value in timed if at > last_seen]
        if not samples:
            refuse(refusals.NOT_FOUND)
        return UNSIGNED_INT, samples

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        return self._memory_v2(handle, version) if version else self._memory_v1(handle)

    def _memory_v1(self, handle: Any) -> Any:
        gpu = self.guard.device("nvmlDeviceGetMemoryInfo", handle)
        memory = pynvml.c_nvmlMemory_t()
        memory.total = gpu.model.memory
        memory.used = gpu.memory_used + gpu.model.reserved
        memory.free = memory.total - memory.used
        return self.guard.answer("nvmlDeviceGetMemoryInfo", gpu.index, memory)

    def _memory_v2(self, handle: Any, version: int) -> Any:
        gpu = self.guard.device("nvmlDeviceGetMemoryInfo_v2", handle)
        if version != pynvml.nvmlMemory_v2:
            refuse(refusals.VERSION_MISMATCH)
        memory = pynvml.c_nvmlMemory_v2_t()
        memory.version = version
        memory.total, memory.reserved = gpu.model.memory, gpu.model.reserved
        memory.used = gpu.memory_used
        memory.free = memory.total - memory.reserved - memory.used
        return self.guard.answer("nvmlDeviceGetMemoryInfo_v2", gpu.index, memory)

    @device_call
    def nvmlDeviceGetPowerUsage(self, gpu: SimulatedGpu) -> int:
        return round(gpu.buffers.usage(self.machine.now) * 1000)

    @device_call
    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: SimulatedGpu) -> int:
        return int(gpu.meter.read("energy", self.machine.now) * 1000)

    @device_call
    def nvmlDeviceGetTemperature(self, gpu: SimulatedGpu, sensor: int) -> int:
        if sensor != pynvml.NVML_TEMPERATURE_GPU:
            refuse(refusals.INVALID_ARGUMENT)
        return round(gpu.celsius(self.machine.now))

    @device_call
    def nvmlDeviceGetTemperatureV(self, gpu: SimulatedGpu, sensor: int) -> int:
        if sensor != pynvml.NVML_TEMPERATURE_GPU:
            refuse(refusals.INVALID_ARGUMENT)
        return round(gpu.celsius(self.machine.now))

    @device_call
    def nvmlDeviceGetNumFans(self, gpu: SimulatedGpu) -> int:
        return 1

    @device_call
    def nvmlDeviceGetFanSpeed_v2(self, gpu: SimulatedGpu, fan: int) -> int:
        if fan != 0:
            refuse(refusals.INVALID_ARGUMENT)
        return round(min(100.0, max(20.0, 2.0 * (gpu.celsius(self.machine.now) - 30.0))))

    @device_call
    def nvmlDeviceGetPerformanceState(self, gpu: SimulatedGpu) -> int:
        if gpu.model.datacentre:
            return FASTEST if gpu.awake or gpu.model.architecture > KEPLER else RESTING
        loaded = FASTEST if gpu.model.shared_memory else GEFORCE_LOADED
        return loaded if gpu.awake else RESTING

    @device_call
    def nvmlDeviceGetMarginTemperature(self, gpu: SimulatedGpu) -> int:
        limit = gpu.model.thresholds.gpu_max or gpu.model.thresholds.slowdown
        return limit - round(gpu.celsius(self.machine.now))

    @device_call
    def nvmlDeviceGetClockInfo(self, gpu: SimulatedGpu, kind: int) -> int:
        return _clock(kind, gpu.sm_clock, gpu.memory_clock)

    @device_call
    def nvmlDeviceGetMaxClockInfo(self, gpu: SimulatedGpu, kind: int) -> int:
        return _clock(kind, gpu.model.clocks.sm, gpu.model.clocks.memory)

    @device_call
    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: SimulatedGpu) -> int:
        return gpu.reasons

    @device_call
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: SimulatedGpu) -> int:
        return gpu.reasons

    @device_call
    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: SimulatedGpu) -> int:
        return gpu.pcie_generation

    @device_call
    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: SimulatedGpu) -> int:
        return gpu.width

    @device_call
    def nvmlDeviceGetPcieReplayCounter(self, gpu: SimulatedGpu) -> int:
        return int(gpu.meter.read("pcie_replays", self.machine.now))

    @blocking_call(PCIE_WINDOW)
    def nvmlDeviceGetPcieThroughput(self, gpu: SimulatedGpu, counter: int) -> int:
        names = {0: "pcie_tx", 1: "pcie_rx"}
        if counter not in names:
            refuse(refusals.INVALID_ARGUMENT)
        now = self.machine.now
        return int(gpu.meter.mean(names[counter], now - PCIE_WINDOW, now) * PCIE_OVERHEAD / 1000)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetComputeRunningProcesses", handle)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v2", handle)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetGraphicsRunningProcesses", handle)

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetGraphicsRunningProcesses_v2", handle)

    def _processes(self, function: str, handle: Any) -> list[Any]:
        try:
            gpu = self.guard.device(function, handle)
        except pynvml.NVMLError_FunctionNotFound as error:
            if function.endswith("_v2"):
                raise
            raise pynvml.NVMLLibraryMismatchError(
                "Unversioned function called and the pyNVML version does not match the NVML lib"
            ) from error
        draw = "Graphics" in function
        found = [listed(process) for process in gpu.processes if process.draws == draw]
        return cast("list[Any]", self.guard.answer(function, gpu.index, found))

    @device_call
    def nvmlDeviceGetProcessUtilization(self, gpu: SimulatedGpu, last_seen: int) -> list[Any]:
        """Processes take turns, each for as long."""
        now = self.machine.now
        busy = gpu.buffers.percent("utilisation", now)
        if not busy or not gpu.processes:
            refuse(refusals.NOT_FOUND)
        share = busy // len(gpu.processes)
        stamp = self.machine.micros(now)
        sample = {"timeStamp": stamp, "smUtil": share, "memUtil": 0, "encUtil": 0, "decUtil": 0}
        return [pynvml.nvmlFriendlyObject({"pid": one.pid, **sample}) for one in gpu.processes]

    @device_call
    def nvmlDeviceGetTotalEccErrors(self, gpu: SimulatedGpu, severity: int, lifetime: int) -> int:
        if severity not in (0, 1) or lifetime not in (0, 1):
            refuse(refusals.INVALID_ARGUMENT)
        if gpu.mig and lifetime == VOLATILE:  # reported of instances alone, and of SRAM
            refuse(refusals.NOT_SUPPORTED)
        return ecc_errors(gpu, self.machine.now, severity, lifetime)

    @device_call
    def nvmlDeviceGetRemappedRows(self, gpu: SimulatedGpu) -> tuple[int, int, int, int]:
        failed = int(gpu.remap_failed)
        return (0, failed + gpu.health.rows, int(gpu.health.rows_pending), failed)

    @device_call
    def nvmlDeviceGetRetiredPages(self, gpu: SimulatedGpu, cause: int) -> list[int]:
        if cause not in (0, 1):
            refuse(refusals.INVALID_ARGUMENT)
        return list(range(gpu.health.pages if cause else 0))

    @device_call
    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: SimulatedGpu) -> int:
        return int(gpu.health.pages_pending)


def listed(
    process: SimulatedGpuProcess, gpu_instance: int = NO_INSTANCE, instance: int = NO_INSTANCE
) -> Any:
    """A process as the driver lists it."""
    return pynvml.nvmlFriendlyObject(
        {
            "pid": process.pid,
            "usedGpuMemory": process.memory,
            "gpuInstanceId": gpu_instance,
            "computeInstanceId": instance,
        }
    )


def ecc_errors(gpu: SimulatedGpu, now: float, severity: int, lifetime: int) -> int:
    """Errors of severity 0 (corrected) or 1; some GPUs corrected one in an earlier life."""
    if not severity:
        before = 0 if lifetime == VOLATILE else gpu.index % 2
        return before + int(gpu.meter.read("ecc_corrected", now))
    return int(gpu.meter.read("ecc", now))


def _buffer(gpu: SimulatedGpu, kind: int, now: float, seen: float) -> Iterable[tuple[float, int]]:
    """When (s of machine time) and what the samples of one kind say; oldest first."""
    if kind in CLOCK_SAMPLES:
        return ()
    if kind == POWER:
        return [(at, round(watts * 1000)) for at, watts in gpu.buffers.power(now, seen)]
    counter = {UTILISATION: "utilisation", MEMORY: "controller"}.get(kind, "encoder or decoder")
    return gpu.buffers.utilisation(counter, now, seen)


def _sample(at: int, value: int) -> Any:
    sample = pynvml.c_nvmlSample_t()
    SAMPLE.pack_into(sample, 0, at, value)
    return sample


def _clock(kind: int, sm: int, memory: int) -> int:
    """Graphics, SM, memory, video: the video clock runs at four fifths of the SM's."""
    clocks = (sm, sm, memory, sm * 4 // 5)
    if not 0 <= kind < len(clocks):
        refuse(refusals.INVALID_ARGUMENT)
    return clocks[kind]
