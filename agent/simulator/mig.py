"""MIG: a GPU in three instances, each with processes of its own, and handles that answer little.

What the whole GPU refuses then stands in `refusals`; memory and processes of all of it are shown to
root alone (nvml.h, notes on nvmlDeviceGetMemoryInfo and nvmlDeviceGetComputeRunningProcesses; 535's
nvidia-smi without rights says N/A, NVIDIA/DCGM issue 152). Numbers and shares of instances:
docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html.
"""

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from agent.simulator import refusals
from agent.simulator.call_guard import HANDLES, device_call, refuse
from agent.simulator.gpu import SimulatedGpu, SimulatedGpuProcess
from agent.simulator.identity import SimulatedIdentity
from agent.simulator.telemetry import SimulatedTelemetry, listed

FIRST = HANDLES + 0x8000
"""Address of the first handle of a MIG device; each GPU has places for seven."""

PLACES = 7
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Profile:
    """An instance's number, its slices of seven, and its share of the memory in eighths."""

    number: int
    slices: int
    eighths: int


PROFILES = (Profile(2, 3, 4), Profile(3, 2, 2), Profile(9, 1, 1))


def profile_name(memory: int, slices: int, eighths: int) -> str:
    """The name of a profile, of a GPU with so many bytes: GiB are rounded up for the whole, and to
    the nearest for the share (NVIDIA/go-nvlib, pkg/nvlib/device/mig_profile.go)."""
    gigabytes = -(-memory // GIB)
    return f"{slices}g.{(gigabytes * eighths + 4) // 8}gb"


@dataclass(frozen=True, slots=True)
class SimulatedInstance:
    """One GPU instance with one compute instance; every third process of the GPU is on it."""

    gpu: SimulatedGpu
    place: int

    @property
    def profile(self) -> Profile:
        return PROFILES[self.place]

    @property
    def memory(self) -> int:
        """Bytes: less than its share, where somebody has published how much."""
        sizes = self.gpu.model.instances
        if sizes:
            return int(sizes[self.profile.slices - 1] * GIB)
        return self.gpu.model.memory * self.profile.eighths // 8

    @property
    def processes(self) -> list[SimulatedGpuProcess]:
        there = self.gpu.processes[self.place :: len(PROFILES)]
        return [replace(one, memory=one.memory * self.profile.eighths // 8) for one in there]

    @property
    def uuid(self) -> str:
        return f"MIG-{self.place:08x}{self.gpu.uuid[12:]}"

    @property
    def name(self) -> str:
        """As the driver makes it of slices and memory."""
        profile = self.profile
        return f"MIG {profile_name(self.gpu.model.memory, profile.slices, profile.eighths)}"


def instances(gpu: SimulatedGpu) -> list[SimulatedInstance]:
    """Those of a GPU; none without MIG."""
    return [SimulatedInstance(gpu, place) for place in range(len(PROFILES)) if gpu.mig]


class SimulatedMig(SimulatedIdentity, SimulatedTelemetry):
    """Handles of MIG devices, and the few functions that take them."""

    @device_call
    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: SimulatedGpu) -> int:
        return PLACES

    @device_call
    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: SimulatedGpu, place: int) -> Any:
        if not 0 <= place < PLACES:
            refuse(refusals.INVALID_ARGUMENT)
        if place >= len(instances(gpu)):
            refuse(refusals.NOT_FOUND)
        address = FIRST + 16 * (PLACES * gpu.index + place)
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlDevice_t)

    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        return self._known("nvmlDeviceGetGpuInstanceId", handle).profile.number

    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:
        self._known("nvmlDeviceGetComputeInstanceId", handle)
        return 0

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        found = self._instance("nvmlDeviceGetUUID", handle)
        return str(super().nvmlDeviceGetUUID(handle)) if found is None else found.uuid

    def nvmlDeviceGetName(self, handle: Any) -> str:
        found = self._instance("nvmlDeviceGetName", handle)
        if found is None:
            return str(super().nvmlDeviceGetName(handle))
        return f"NVIDIA {found.gpu.model.name} {found.name}"

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        found = self._instance("nvmlDeviceGetMemoryInfo", handle)
        if found is None:
            return super().nvmlDeviceGetMemoryInfo(handle, version)
        memory = pynvml.c_nvmlMemory_v2_t()
        memory.total = found.memory
        memory.used = sum(process.memory for process in found.processes)
        memory.free = memory.total - memory.used
        return memory

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        found = self._instance("nvmlDeviceGetComputeRunningProcesses", handle)
        if found is None:
            return super().nvmlDeviceGetComputeRunningProcesses(handle)
        return [listed(process, found.profile.number, 0) for process in found.processes]

    def _known(self, function: str, handle: Any) -> SimulatedInstance:
        found = self._instance(function, handle)
        if found is None:  # that of a whole GPU, or none at all
            raise pynvml.NVMLError(refusals.INVALID_ARGUMENT)
        return found

    def _instance(self, function: str, handle: Any) -> SimulatedInstance | None:
        """The instance behind a handle, None where it is none of a MIG device."""
        try:
            address = ctypes.cast(handle, ctypes.c_void_p).value or 0
        except ctypes.ArgumentError:
            return None
        index, place = divmod((address - FIRST) // 16, PLACES)
        if address < FIRST or index >= len(self.machine.gpus):
            return None
        self.guard.enter(function, index)
        gpu = self.machine.gpus[index]
        if gpu.lost:
            refuse(refusals.GPU_IS_LOST)
        with self.machine.lock:
            there = instances(gpu)
        if place >= len(there):  # MIG was switched off
            refuse(refusals.INVALID_ARGUMENT)
        return there[place]
