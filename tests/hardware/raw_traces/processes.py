"""What the kernel tells of every thread below some processes, and of the host. numpy.

Arrays; `tick` counts the readings, whose times are `ticks` (CLOCK_MONOTONIC, s):
- `threads`: THREAD_COLUMNS; times in ticks of the kernel (10 ms) and, from schedstat, in ns.
- `io`: tick, pid, then IO_NAMES (bytes and calls since the process began).
- `cpu`: tick, then /proc/stat's first line (10 ms); `pressure`: tick, then PRESSURE (us in all).
- `disks`: tick, the disk's place in `disk_names`, then /proc/diskstats from its fourth field on.
- `networks`: tick, place in `network_names`, bytes and packets received, sent.
- `memory`: tick, then VMSTAT.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

THREAD_COLUMNS = (
    *("tick", "pid", "tid", "state", "utime", "stime", "minor_faults", "major_faults"),
    *("block_io_ticks", "processor", "run_ns", "wait_ns", "slices", "waits_in"),
)
IO_NAMES = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes")
PRESSURE = ("cpu some", "io some", "io full", "memory some", "memory full")
VMSTAT = (
    "pgpgin",
    "pgpgout",
    "pgfault",
    "pgmajfault",
    "allocstall_normal",
    "workingset_refault_file",
)
CGROUP_FILES = ("cpu.pressure", "io.pressure", "memory.pressure", "cpu.stat", "io.stat")
EVERY = 0.25  # s


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def _numbers(directory: str) -> list[int]:
    """The entries of a directory that are pids or tids."""
    try:
        return [int(entry.name) for entry in os.scandir(directory) if entry.name.isdigit()]
    except OSError:
        return []


class ProcessRecording:
    """Threads below `roots`, look by look."""

    def __init__(self, roots: Iterable[int], cgroups: Path | None) -> None:
        """`cgroups` is where cgroup2 is mounted, if it is."""
        self._roots = set(roots)
        self._cgroup_root = cgroups
        self.times: list[float] = []
        self._threads: list[list[int]] = []
        self._io: list[list[int]] = []
        self._host: dict[str, list[list[int]]] = {}
        self.places: dict[str, list[str]] = {"disks": [], "networks": [], "waits_in": []}
        self.names: dict[int, dict[str, Any]] = {}
        self.cgroups: list[Any] = []
        self.cpu_seconds = 0.0

    def run(self, going: Callable[[], bool]) -> None:
        """Record while `going()`."""
        due = time.monotonic()
        while going():
            busy = time.process_time()
            self._read_all()
            self.cpu_seconds += time.process_time() - busy
            due = max(due + EVERY, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    def write(self, path: Path) -> None:
        """All arrays, compressed. A thread that never ran keeps its first row alone."""
        rows = np.array(self._threads, np.int64).reshape(-1, len(THREAD_COLUMNS))
        if len(rows):
            _, first = np.unique(rows[:, 2:], axis=0, return_index=True)
            rows = rows[np.sort(first)]
        arrays = {name: np.array(found, np.int64) for name, found in self._host.items()}
        arrays |= {"threads": rows, "io": np.array(self._io, np.int64)}
        np.savez_compressed(path, ticks=np.array(self.times), **arrays)

    def facts(self) -> dict[str, Any]:
        """What is no number."""
        return {
            "processes": self.names,
            "cgroups": self.cgroups,
            "places": self.places,
            "cpu_seconds": self.cpu_seconds,
        }

    def _place(self, kind: str, name: str) -> int:
        known = self.places[kind]
        if name not in known:
            known.append(name)
        return known.index(name)

    def _read_all(self) -> None:
        tick = len(self.times)
        self.times.append(time.monotonic())
        paths: set[str] = set()
        spaces: dict[str, int] = {}
        for pid, parent in self._below():
            self._read_process(tick, pid, parent)
            paths.add(self.names[pid]["cgroup"])
            spaces.setdefault(self.names[pid]["network_namespace"], pid)
        self._read_host(tick)
        for space, pid in spaces.items():
            self._read_networks(tick, space, pid)
        if tick % 2 == 0:
            self._read_cgroups(tick, paths)

    def _below(self) -> list[tuple[int, int]]:
        parents = {}
        for pid in _numbers("/proc"):
            stat = _text(f"/proc/{pid}/stat")
            if stat:
                parents[pid] = int(stat.rpartition(")")[2].split()[1])
        found = set(self._roots)
        grown = True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            found |= more
            grown = bool(more)
        return [(pid, parents[pid]) for pid in sorted(found) if pid in parents]

    def _read_process(self, tick: int, pid: int, parent: int) -> None:
        if pid not in self.names:
            command = _text(f"/proc/{pid}/cmdline").replace("\0", " ")[:160]
            group = next(
                (x[3:] for x in _text(f"/proc/{pid}/cgroup").split("\n") if x.startswith("0::")), ""
            )
            space = ""
            with contextlib.suppress(OSError):
                space = str(Path(f"/proc/{pid}/ns/net").readlink())
            self.names[pid] = {
                "parent": parent,
                "command": command,
                "cgroup": group,
                "network_namespace": space,
                "threads": {},
            }
        threads = self.names[pid]["threads"]
        for tid in _numbers(f"/proc/{pid}/task"):
            self._read_thread(tick, pid, tid, threads)
        told = dict(x.split(": ") for x in _text(f"/proc/{pid}/io").splitlines())
        if told:
            self._io.append([tick, pid, *(int(told[name]) for name in IO_NAMES)])

    def _read_thread(self, tick: int, pid: int, tid: int, names: dict[int, str]) -> None:
        base = f"/proc/{pid}/task/{tid}/"
        head, _, rest = _text(base + "stat").rpartition(")")
        ran = _text(base + "schedstat").split() or ["-1", "-1", "-1"]
        if not rest:
            return
        names.setdefault(tid, head.partition("(")[2])
        field = rest.split()  # the third field of the file comes first
        counted = [int(field[i]) for i in (11, 12, 7, 9, 39, 36)]  # as THREAD_COLUMNS has them
        place = self._place("waits_in", _text(base + "wchan"))
        self._threads.append([tick, pid, tid, ord(field[0]), *counted, *map(int, ran), place])

    def _host_row(self, name: str, row: list[int]) -> None:
        self._host.setdefault(name, []).append(row)

    def _read_host(self, tick: int) -> None:
        self._host_row("cpu", [tick, *map(int, _text("/proc/stat").split("\n")[0].split()[1:9])])
        self._host_row("pressure", [tick, *_pressures("/proc/pressure/{}")])
        memory = dict(x.split() for x in _text("/proc/vmstat").splitlines())
        self._host_row("memory", [tick, *(int(memory.get(name, -1)) for name in VMSTAT)])
        for line in _text("/proc/diskstats").splitlines():
            fields = line.split()
            if not fields[2].startswith(("loop", "ram")):
                place = self._place("disks", fields[2])
                self._host_row("disks", [tick, place, *map(int, fields[3:14])])

    def _read_networks(self, tick: int, space: str, pid: int) -> None:
        for line in _text(f"/proc/{pid}/net/dev").splitlines()[2:]:
            name, _, numbers = line.partition(":")
            told = [int(n) for n in numbers.split()]
            place = self._place("networks", f"{space} {name.strip()}")
            self._host_row("networks", [tick, place, told[0], told[1], told[8], told[9]])

    def _read_cgroups(self, tick: int, paths: Iterable[str]) -> None:
        for path in paths:
            if self._cgroup_root is None:
                return
            below = self._cgroup_root / path.lstrip("/")
            told = {name: _text(str(below / name)) for name in CGROUP_FILES}
            if any(told.values()):
                self.cgroups.append([tick, path, told])


def _pressures(pattern: str) -> list[int]:
    found = []
    for resource in ("cpu", "io", "memory"):
        told = {
            line.split()[0]: int(line.rpartition("=")[2])
            for line in _text(pattern.format(resource)).splitlines()
        }
        kinds = ("some",) if resource == "cpu" else ("some", "full")
        found += [told.get(kind, -1) for kind in kinds]
    return found
