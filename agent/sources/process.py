"""Compute processes on a GPU: how many, how much memory they hold, and (on request) which."""

from collections.abc import Callable, Iterator
from typing import Any

from agent import beats
from agent.backends.device import Device
from agent.backends.files import read_text
from agent.backends.host import Host
from agent.model import GPU_LABELS, Absent, Reason, gauge, signal
from agent.probe import Probe
from agent.reads import Out, Read
from agent.workload.occupants import Occupants

PROCESSES = gauge(
    "dgx_gpu_processes",
    "Compute processes on the GPU.",
    "nvmlDeviceGetComputeRunningProcesses",
    GPU_LABELS,
)
MEMORY = gauge(
    "dgx_gpu_processes_memory_bytes",
    "Device memory held by the compute processes together, in bytes.",
    "nvmlDeviceGetComputeRunningProcesses().usedGpuMemory",
    GPU_LABELS,
)
PROCESS_MEMORY = gauge(
    "dgx_gpu_process_memory_bytes",
    "Device memory held by one compute process, in bytes. Only with process.series above 0 in "
    "the configuration: the largest processes of each GPU, at most so many.",
    "nvmlDeviceGetComputeRunningProcesses().usedGpuMemory, /proc/PID/comm",
    (*GPU_LABELS, "pid", "name"),
)
PROCESS = signal(
    "dgx_gpu_process",
    "1 for each compute process on the GPU.",
    "nvmlDeviceGetComputeRunningProcesses",
    (*GPU_LABELS, "pid"),
)

NOT_TOLD = Absent(Reason.UNKNOWN, "the driver does not tell how much memory a process holds")


def running(device: Device) -> list[Any]:
    """Processes with pid and usedGpuMemory (bytes or None), by the newest call there is."""
    try:
        found = device.get("ComputeRunningProcesses")
    except Absent as absent:
        if absent.reason is not Reason.DRIVER:
            raise
        found = device.get("ComputeRunningProcesses_v2")
    return list(found)


class Processes:
    """Keeps `device.occupied`, on which the beat of the dear reads depends, and tells the host
    lane which processes to look into."""

    def __init__(
        self, device: Device, host: Host, series: Callable[[], int], occupants: Occupants
    ) -> None:
        self._device = device
        self._host = host
        self._series = series
        self._occupants = occupants

    def read(self, out: Out) -> None:
        processes: list[Any] = []
        try:
            processes = running(self._device)
        finally:  # where the driver refuses, nobody is known to be there
            self._occupants.settle(self._device.labels, (p.pid for p in processes))
        self._device.occupied = bool(processes)
        out.add(PROCESSES, len(processes))
        held = [p.usedGpuMemory for p in processes]
        if None in held:
            out.absent(MEMORY, NOT_TOLD)
        else:
            out.add(MEMORY, sum(held))
        for process in processes:
            out.add(PROCESS, 1, str(process.pid))
        self._list_largest(processes, out)

    def _list_largest(self, processes: list[Any], out: Out) -> None:
        told = [p for p in processes if p.usedGpuMemory is not None]
        told.sort(key=lambda p: (-p.usedGpuMemory, p.pid))
        for process in told[: self._series()]:
            name = self._name(process.pid)
            out.add(PROCESS_MEMORY, process.usedGpuMemory, str(process.pid), name)

    def _name(self, pid: int) -> str:
        try:
            return read_text(self._host.files, f"/proc/{pid}/comm")
        except Absent:  # gone meanwhile, or another user's behind hidepid
            return ""


def reads(probe: Probe) -> Iterator[Read]:
    """The reads of one GPU."""
    processes = Processes(probe.device, probe.host, probe.process_series, probe.occupants)
    metrics = (PROCESSES, MEMORY)
    yield probe.read("process", "list", metrics, processes.read, beats.PROCESSES, prompt=True)
