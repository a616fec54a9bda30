"""Processes on a GPU: their number, and the processes with the most GPU memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from agent.config.settings import Section
from agent.hardware import mig, processes
from agent.hardware.files import text_or_nothing
from agent.hardware.nvml import unless_final
from agent.jobs.identity import printable
from agent.jobs.process_table import VISIBLE
from agent.metrics import declared_beside
from agent.model import FINAL, Absent, Reason
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import GpuContext


class ProcessConfig(Section, frozen=True):
    """Settings for processes. At most `series` processes per GPU are exported individually."""

    table = "process"
    series: Annotated[int, Meta(ge=0, le=1000, description="a whole number from 0 to 1000")] = 0


_METRICS = declared_beside(__file__)
PROCESSES = _METRICS["dgx_gpu_processes"]
PROCESS_MEMORY = _METRICS["dgx_gpu_process_memory_bytes"]
PROCESS = _METRICS["dgx_gpu_process"]
PROGRAM = _METRICS["dgx_gpu_process_info"]
HELD = _METRICS["dgx_gpu_process_held_bytes"]
SHARE = _METRICS["dgx_gpu_process_share_ratio"]

MPS_CLIENTS = Absent(Reason.UNSUPPORTED, "the driver does not distinguish the clients of MPS")
HIDDEN = Absent(Reason.DENIED, f"the driver lists no process, and memory is in use: {VISIBLE}")
MOST_SHOWN = 8  # Maximum number of processes per GPU that the page names
MPS_SERVER = "nvidia-cuda-mps"
"""Process name of the CUDA Multi-Process Service (MPS): its server and its control daemon. The
kernel truncates names to 15 characters. The driver also lists the clients of the server (since
Volta). A server that a user's own daemon started counts as a process of this user."""

DISPLAYS = ["Xorg", "X", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "mutter-x11-fram"]
"""Names of display servers. Display servers do not count as jobs."""


@dataclass(slots=True)
class Processes:
    """Lists the processes on a GPU, for the worker that reads /proc. It also records whether the
    GPU has any, which determines the interval of expensive reads."""

    gpu: GpuContext
    _names: dict[int, str] = field(default_factory=dict)  # program names by PID
    _servers: frozenset[int] = frozenset()  # MPS servers
    _seen: int = 0  # driver timestamp (us) of the latest share of a process

    def read(self, out: ReadOutput) -> None:
        device, working = self.gpu.device, list[int]()
        try:
            # In MIG mode, only root can list the processes of the whole GPU.
            places = [one.handle for one in mig.devices(device)] if device.mig else [device.handle]
            listed = [process for place in places for process in mig.processes(device, place)]
            working = self._working(listed)
            used = 0 if listed else unless_final(lambda: device.memory(device.handle).used, 0)
            if used > 1 << 30:  # a container does not see the processes of the host
                raise HIDDEN.without_traceback()
        finally:  # if the driver refuses the call, no processes are known
            self.gpu.gpu_processes.by_gpu[self.gpu.device.labels] = tuple(working)
        self.gpu.state.has_processes = bool(working)
        out.add(PROCESSES, len(working))
        for pid in working:
            out.add(PROCESS, 1, str(pid))
        self._list_largest(listed, out)
        if len(working) > 1:
            self._add_shares(working, out)

    def _working(self, listed: list[mig.GpuProcess]) -> list[int]:
        """Return the PIDs of the processes that are neither MPS servers nor display servers. A
        display server renders graphics, computes nothing, and uses little memory."""
        known, files, pids = self._names, self.gpu.host.files, [one.pid for one in listed]
        self._names = {
            pid: known.get(pid) or printable(text_or_nothing(files, f"/proc/{pid}/comm"))
            for pid in pids
        }  # empty if the process has exited or is hidden by hidepid
        named = (pid for pid in pids if self._names[pid] == MPS_SERVER)
        self._servers = frozenset(pid for pid in named if self._serves(pid))
        return [
            one.pid
            for one in listed
            if one.pid not in self._servers
            and (
                one.computes
                or self._names[one.pid] not in DISPLAYS
                or (one.memory or 0) > 4 << 30  # any program can have the name of a display server
            )
        ]

    def _serves(self, pid: int) -> bool:
        """Return whether a process is an MPS server that root, or root's daemon, has started."""
        files = self.gpu.host.files
        try:
            if processes.is_roots(files, pid, MPS_SERVER):
                return True
            return processes.is_roots(files, processes.stat(files, pid).parent, MPS_SERVER)
        except OSError:
            return False

    def _list_largest(self, listed: list[mig.GpuProcess], out: ReadOutput) -> None:
        ranked = sorted(listed, key=lambda p: (-(p.memory or 0), p.pid))
        series = self.gpu.configuration.current[ProcessConfig].series
        for place, process in enumerate(ranked[: max(series, MOST_SHOWN)]):
            pid, name, held = str(process.pid), self._names[process.pid], process.memory
            if place < MOST_SHOWN:
                out.add(PROGRAM, 1, pid, name)
            if held is not None:
                out.add(HELD, held, pid)
                if place < series:
                    out.add(PROCESS_MEMORY, held, pid, name)

    def _add_shares(self, working: Sequence[int], out: ReadOutput) -> None:
        """Add each process's share of GPU time since the previous read. Skip old samples."""
        samples: Sequence[Any] = ()
        try:
            if self._servers:
                raise MPS_CLIENTS.without_traceback()
            samples = self.gpu.device.get("ProcessUtilization", self._seen)
        except Absent as absent:
            if absent.reason in FINAL:
                raise
            if absent.reason is not Reason.UNKNOWN:  # NOT_FOUND: no process used the GPU
                out.absent(SHARE, absent)
                return
        parts: dict[int, list[int]] = {}
        for one in samples:
            if one.timeStamp > self._seen:
                parts.setdefault(one.pid, []).append(min(one.smUtil, 100))
        self._seen = max((one.timeStamp for one in samples), default=self._seen)
        for pid in working:
            some = parts.get(pid, [0])
            out.add(SHARE, sum(some) / len(some) / 100, str(pid))


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    run, every = Processes(gpu_context).read, intervals.PROCESSES
    yield gpu_context.read("process", "list", (PROCESSES,), run, every, run_on_wake=True)
