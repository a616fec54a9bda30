"""Lists the MIG instances and the processes of a GPU. Handles become invalid when the GPU is
repartitioned, so each read must list the instances again."""

from typing import Any, NamedTuple

from agent.hardware.device import UUID, NvmlDevice
from agent.hardware.nvml import unless_final
from agent.model import FINAL, Absent, Reason, checked
from agent.ranges import Range

MOST_MIG = 8  # Upper bound for the number of MIG devices per GPU
MOST_PROCESSES = 4096  # Upper bound for the number of processes per GPU


class MigDevice(NamedTuple):
    """A compute instance, which CUDA lists as a device. Compute instances of the same GPU instance
    share memory. `profile` is a name such as 1g.10gb."""

    handle: Any
    gpu_instance: int
    compute_instance: int
    uuid: str
    profile: str


def devices(device: NvmlDevice) -> list[MigDevice]:
    """Return the current MIG devices of a GPU, sorted by index. Omit devices with invalid IDs or
    UUIDs. Raise Absent if the GPU is lost or the driver is unavailable."""
    found, count = [], device.get("MaxMigDeviceCount")
    for place in range(count if isinstance(count, int) and 0 <= count <= MOST_MIG else MOST_MIG):
        try:
            handle = device.get("MigDeviceHandleByIndex", place)
            gpu, compute = (
                int(checked(device.nvml.call(f"nvmlDeviceGet{what}", handle), Range(0, 255), what))
                for what in ("GpuInstanceId", "ComputeInstanceId")
            )
            name = device.nvml.text("nvmlDeviceGetName", handle)
            uuid = str(device.nvml.call("nvmlDeviceGetUUID", handle))
        except Absent as absent:  # no device at this index, or the device was just removed
            if absent.reason in FINAL:
                raise
            continue
        if UUID.fullmatch(uuid):
            found.append(MigDevice(handle, gpu, compute, uuid, name.rpartition("MIG ")[2]))
    return found


class GpuProcess(NamedTuple):
    """A process on a GPU: its PID, and its GPU memory in bytes (None if the driver does not report
    it). `computes` is false if the process only renders graphics."""

    pid: int
    memory: Any
    computes: bool


def processes(device: NvmlDevice, handle: Any) -> list[GpuProcess]:
    """Return the processes of a GPU or MIG device without duplicates: compute processes first, and
    then graphics processes, if the driver lists them. Raise Absent if the compute processes cannot
    be listed, the GPU is lost, or the driver is unavailable."""
    found = {one.pid: (one, True) for one in _listed(device, handle, "Compute")}
    drawing = unless_final(lambda: _listed(device, handle, "Graphics"), list[Any]())
    for one in drawing:
        found.setdefault(one.pid, (one, False))
    return [
        GpuProcess(pid, one.usedGpuMemory, computes)
        for pid, (one, computes) in found.items()
        if 0 < pid <= 1 << 22  # of 64-bit Linux
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
