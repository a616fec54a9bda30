"""The instances into which MIG divides a GPU, with handles of their own. Handles become invalid
when the GPU is divided again: list them for each look."""

from typing import Any, NamedTuple

from agent.hardware.device import UUID, NvmlDevice
from agent.hardware.nvml import unless_final
from agent.model import FINAL, Absent, Reason, checked
from agent.ranges import Range

MOST_MIG = 8  # More MIG devices than any GPU has
MOST_PROCESSES = 4096  # More processes than any GPU has
MOST_PID = 1 << 22  # The highest number of a process on 64-bit Linux
ASKED = ("GpuInstanceId", "ComputeInstanceId")
IDS = Range(0, 255)


class MigDevice(NamedTuple):
    """A compute instance: CUDA takes it for a device. Compute instances of the same GPU instance
    share its memory. `profile` is the end of its name, like 1g.10gb."""

    handle: Any
    gpu_instance: int
    compute_instance: int
    uuid: str
    profile: str


def devices(device: NvmlDevice) -> list[MigDevice]:
    """The present MIG devices, by their place, except impossible numbers or UUIDs; raises
    Absent."""
    found, count = [], device.get("MaxMigDeviceCount")
    for place in range(count if isinstance(count, int) and 0 <= count <= MOST_MIG else MOST_MIG):
        try:
            handle = device.get("MigDeviceHandleByIndex", place)
            gpu, compute = (
                int(checked(device.nvml.call(f"nvmlDeviceGet{what}", handle), IDS, what))
                for what in ASKED
            )
            name = device.nvml.text("nvmlDeviceGetName", handle)
            uuid = str(device.nvml.call("nvmlDeviceGetUUID", handle))
        except Absent as absent:  # nothing at this place, or gone meanwhile
            if absent.reason in FINAL:
                raise
            continue
        if UUID.fullmatch(uuid):
            found.append(MigDevice(handle, gpu, compute, uuid, name.rpartition("MIG ")[2]))
    return found


class GpuProcess(NamedTuple):
    """A process on a GPU: its memory (bytes, None if the driver does not say), and whether it
    computes or only draws."""

    pid: int
    memory: Any
    computes: bool


def processes(device: NvmlDevice, handle: Any) -> list[GpuProcess]:
    """Processes of a GPU or MIG device, each once: the computing processes, then the processes that
    only draw, if the driver lists them. Raises Absent."""
    found = {one.pid: (one, True) for one in _listed(device, handle, "Compute")}
    drawing = unless_final(lambda: _listed(device, handle, "Graphics"), list[Any]())
    for one in drawing:
        found.setdefault(one.pid, (one, False))
    return [
        GpuProcess(pid, one.usedGpuMemory, computes)
        for pid, (one, computes) in found.items()
        if 0 < pid <= MOST_PID
    ]


def _listed(device: NvmlDevice, handle: Any, kind: str) -> list[Any]:
    call = f"nvmlDeviceGet{kind}RunningProcesses"
    try:
        found = list(device.nvml.call(call, handle))
    except Absent as absent:
        if absent.reason is not Reason.DRIVER:
            raise
        found = list(device.nvml.call(f"{call}_v2", handle))
    if len(found) > MOST_PROCESSES:
        raise Absent(Reason.IMPLAUSIBLE, f"{call} lists {len(found)} processes")
    return found
