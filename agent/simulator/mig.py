"""Simulates MIG: a GPU with three instances, each with its own processes. nvml.toml defines the
NVML calls that fail for the whole GPU in MIG mode. Only root can read the memory and processes of
the whole GPU (nvml.h, notes on nvmlDeviceGetMemoryInfo and nvmlDeviceGetComputeRunningProcesses).
For other users, nvidia-smi 535 reports N/A (NVIDIA/DCGM issue 152). Instance numbers and shares are
from docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pynvml

from agent.simulator.driver import HANDLES, INVALID_ARGUMENT, NOT_FOUND, pointer_to, refuse
from agent.simulator.getters import listed
from agent.simulator.gpu import SimulatedGpu, SimulatedGpuProcess

FIRST_HANDLE = HANDLES + 0x8000
"""Address of the first MIG device handle. Each GPU has addresses for seven handles."""

MOST_INSTANCES = 7


class Profile(NamedTuple):
    """A MIG profile: its ID, compute slices (of seven), and eighths of the GPU's memory."""

    number: int
    slices: int
    eighths: int


PROFILES = (Profile(2, 3, 4), Profile(3, 2, 2), Profile(9, 1, 1))


def profile_name(memory: int, slices: int, eighths: int) -> str:
    """Return the name of a profile on a GPU with `memory` bytes, such as 1g.10gb. The GPU's memory
    is rounded up to GiB, and the instance's memory to the nearest GiB (NVIDIA/go-nvlib,
    pkg/nvlib/device/mig_profile.go)."""
    gigabytes = -(-memory // (1 << 30))
    return f"{slices}g.{(gigabytes * eighths + 4) // 8}gb"


@dataclass(frozen=True, slots=True)
class SimulatedInstance:
    """A GPU instance with one compute instance and a third of the GPU's processes."""

    gpu: SimulatedGpu
    place: int

    @property
    def profile(self) -> Profile:
        return PROFILES[self.place]

    @property
    def processes(self) -> list[SimulatedGpuProcess]:
        there = self.gpu.processes[self.place :: len(PROFILES)]
        return [replace(one, memory=one.memory * self.profile.eighths // 8) for one in there]

    def memory_info(self) -> Any:
        used = sum(process.memory for process in self.processes)
        total = self.gpu.model.memory * self.profile.eighths // 8
        return pynvml.c_nvmlMemory_v2_t(total=total, free=total - used, used=used)

    @property
    def name(self) -> str:
        """The device name, which includes the profile name."""
        _, slices, eighths = self.profile
        model = self.gpu.model
        return f"NVIDIA {model.name} MIG {profile_name(model.memory, slices, eighths)}"


OF_INSTANCE: dict[str, Callable[[SimulatedInstance], Any]] = {
    "GpuInstanceId": lambda i: i.profile.number,
    "ComputeInstanceId": lambda _: 0,
    "UUID": lambda i: f"MIG-{i.place:08x}{i.gpu.uuid[12:]}",
    "Name": lambda i: i.name,
    "MemoryInfo": SimulatedInstance.memory_info,
    "MemoryInfo_v2": SimulatedInstance.memory_info,
    "ComputeRunningProcesses": lambda i: [listed(one, i.profile.number) for one in i.processes],
}
"""The NVML functions that accept the handle of a MIG device."""


def instances(gpu: SimulatedGpu) -> list[SimulatedInstance]:
    return [SimulatedInstance(gpu, place) for place in range(len(PROFILES)) if gpu.mig]


def decoded(address: int) -> tuple[int, int | None]:
    """Return the GPU index of the device handle at `address`, and the index of its MIG instance
    (None for a whole GPU). If there is no handle at `address`, the GPU index is -1."""
    if address >= FIRST_HANDLE:
        return divmod((address - FIRST_HANDLE) // 16, MOST_INSTANCES)
    index, odd = divmod(address - HANDLES, 16)
    return -1 if odd else index, None


def _handle(_: Any, gpu: SimulatedGpu, place: int) -> Any:
    if not 0 <= place < MOST_INSTANCES:
        refuse(INVALID_ARGUMENT)
    if place >= len(instances(gpu)):
        refuse(NOT_FOUND)
    address = FIRST_HANDLE + 16 * (MOST_INSTANCES * gpu.index + place)
    return pointer_to(address, pynvml.c_nvmlDevice_t)


ANSWERS: dict[str, Callable[..., Any]] = {
    "MaxMigDeviceCount": lambda *_: MOST_INSTANCES,
    "MigDeviceHandleByIndex": _handle,
    "GpuInstanceId": lambda *_: refuse(INVALID_ARGUMENT),
    "ComputeInstanceId": lambda *_: refuse(INVALID_ARGUMENT),
}
