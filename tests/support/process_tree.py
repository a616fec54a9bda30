"""A /proc of made-up processes below a folder, and what the agent reads of them."""

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from agent.config.settings import Configuration, Settings
from agent.hardware.host import Host
from agent.hardware.sockets import Found
from agent.jobs.allocation import Allocations
from agent.model import Metric, Reading
from agent.polling.gpu_state import GpuProcesses
from agent.polling.reads import ReadCosts, perform
from agent.sources import workload
from agent.sources.context import HostOptions
from agent.threads import Spawn, at_once
from tests.support.fake_host import FakePsutil, OddTree, put
from tests.support.frozen_clock import FrozenClock

GPU, OTHER = ("0", "GPU-0"), ("1", "GPU-1")
CGROUP = "/system.slice/job.scope"


class ProcessTree:
    """Processes as files; `read` lets a second pass and reads the workload."""

    def __init__(self, root: Path, *, info: bool = False, spawn: Spawn = at_once) -> None:
        self.root = root
        self.tree = OddTree(root)
        self.clock = FrozenClock()
        self.gpu_processes = GpuProcesses()
        self.parents: dict[int, tuple[int, str, float]] = {}
        self.write("/proc/uptime", "5000.00 1.00")
        self.sockets: Found = {}
        self.looks: list[set[str]] = []
        users = {1000: "ada"}
        host = Host(self.tree, FakePsutil(), login=users.__getitem__, sockets=self._look)
        self.configuration = Configuration(Settings(workload.JobConfig(info)))
        options = HostOptions(self.configuration)
        self.allocations = Allocations()
        (self._read,) = workload.reads(
            host, self.clock, options, self.gpu_processes, self.allocations, spawn=spawn
        )

    def _look(self, cgroups: Collection[str]) -> Found:
        self.looks.append(set(cgroups))
        return self.sockets

    def write(self, path: str, text: str) -> None:
        put(self.root, path, text)

    def start(
        self, pid: int, parent: int = 1, *, thread: int = 0, name: str = "python3", at: float = 4e3
    ) -> None:
        """A process that `thread` of its parent forked (0: the first) `at` seconds after boot."""
        self.parents[pid] = (parent, name, at)
        self.does(pid, "S", 0.0)
        self.thread(pid, pid, "S", 0.0)
        status = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCpus_allowed_list:\t0-3\n"
        self.write(f"/proc/{pid}/status", status)
        self.write(f"/proc/{pid}/cgroup", f"0::{CGROUP}\n")
        self.write(f"/proc/{pid}/cmdline", "python3\0train.py\0")
        self.write(f"/proc/{pid}/task/{pid}/children", "")
        above = self.root / f"proc/{parent}/task/{thread or parent}/children"
        if above.exists():
            above.write_text(f"{above.read_text()}{pid} ")

    def does(
        self, pid: int, state: str, seconds: float, ended: float = 0.0, *, system: float = 0.0,
        faults: int = 0,
    ) -> None:  # fmt: skip
        """The process is in this state now, and has used so many CPU seconds, `system` of them in
        the kernel, and had so many page faults; its children that have ended used so many."""
        parent, name, started = self.parents[pid]
        ticks, theirs, kernel = (round(one * 100) for one in (seconds, ended, system))
        used = f"{ticks - kernel} {kernel} {theirs // 3} {theirs - theirs // 3}"
        rest = f"{used} 20 0 1 0 {started * 100:.0f} 0 0"
        numbers = f"{parent} {pid} {pid} 0 -1 4194304 {faults} 0 0 0 {rest}"
        self.write(f"/proc/{pid}/stat", f"{pid} ({name}) {state} {numbers}{' 0' * 28}\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / f"proc/{pid}")

    def occupy(self, *pids: int, gpu: tuple[str, str] = GPU) -> None:
        self.gpu_processes.by_gpu[gpu] = tuple(pids)

    def thread(
        self, pid: int, tid: int, state: str, ran: float, queued: float = 0.0, *, woken: int = 1
    ) -> None:
        """A thread of the process is in this state; it ran and was ready for so many seconds, and
        was put on a core so often."""
        parent, name, started = self.parents[pid]
        rest = f"{round(ran * 100)} 0 0 0 20 0 1 0 {started * 100:.0f} 0 0"
        numbers = f"{parent} {pid} {pid} 0 -1 4194304 0 0 0 0 {rest}"
        folder = f"/proc/{pid}/task/{tid}"
        self.write(f"{folder}/stat", f"{tid} ({name}) {state} {numbers}{' 0' * 28}\n")
        self.write(f"{folder}/schedstat", f"{ran * 1e9:.0f} {queued * 1e9:.0f} {woken}\n")

    def read(self, after: float = 1.0) -> Reading:
        self.clock.advance(after)
        self.tree.asked.clear()
        self.tree.listed.clear()
        reading, _ = perform(self._read, self.clock, ReadCosts())
        assert not reading.failure, reading.failure
        return reading


def of(reading: Reading, gpu: tuple[str, str] = GPU) -> dict[Metric, float]:
    """The figures of one GPU; of its jobs only how many."""
    found: dict[Metric, float] = {}
    for metric, labels, value in reading.samples:
        if labels[:2] == gpu:
            found[metric] = found.get(metric, 0.0) + value
    return found


def labels_of(reading: Reading, metric: Metric) -> list[tuple[str, ...]]:
    return [labels for found, labels, _ in reading.samples if found is metric]


def pids_asked(paths: Iterable[str]) -> set[int]:
    """The processes whose files are among these."""
    return {int(p) for path in paths if (p := path.split("/")[2]).isdigit()}
