"""Waits of a load's launching thread, written while it runs. No PyTorch here."""

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WAITS = ("disk", "network", "cpu", "unknown", "requests", "peer", "pcie")
"""Kinds of waits of a launching thread. While it waits for nothing and the GPU is idle, the GPU is
without the thread itself, as far as the thread runs; for the rest it waits for the lock of the
interpreter or for a core (`cpu`)."""

ROW = struct.Struct("<qqiq")
"""Start and end (CLOCK_MONOTONIC, ns; no end: 0) and the place in WAITS; -1: the end of a step; -2:
the steady phase begins. A wait has a row when it begins and one when it is over. Last is the time
(ns) for which the threads that launch have run; 0 before the steady phase."""

STEP, STEADY = -1, -2

THREAD_CLOCK = 6
"""The low bits of the identifier of a thread's CPU clock (clock_getcpuclockid(3))."""


class Marks:
    """The marks of one rank; goes to `path`."""

    def __init__(self, path: str, seconds: float) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        self._until = time.monotonic() + seconds
        self._clocks: list[int] = []

    def steady(self) -> None:
        """Call once from the launching thread, when warm-up and compilation are over and each step
        is like the next."""
        tasks = [task for task in Path("/proc/self/task").iterdir() if launches(task)]
        for thread in (threading.get_native_id(), *(int(task.name) for task in tasks)):
            self._clocks.append(~thread << 3 | THREAD_CLOCK)
        self._put(time.monotonic_ns(), time.monotonic_ns(), STEADY)

    def going(self) -> bool:
        """False once the load may end; it is usually killed before."""
        return time.monotonic() < self._until

    @contextmanager
    def waits(self, cause: str) -> Iterator[None]:
        """While this is entered the launching thread sleeps until others have done something:
        `disk` (all of a call that reads or saves a file, and not its `fsync` alone; also network
        file systems that behave like one), `network`, `cpu` (other threads or processes that
        prepare data, a compiler, a want of cores; as far as the launching thread runs meanwhile, it
        is the thread itself), `unknown` (a timer, a person, a remote service that sends next to
        nothing), `requests` (a server without work), `peer` (another rank, on the host), `pcie` (a
        copy between host and GPU)."""
        start = time.monotonic_ns()
        self._put(start, 0, WAITS.index(cause))
        try:
            yield
        finally:
            self._put(start, time.monotonic_ns(), WAITS.index(cause))

    def step(self) -> None:
        """The end of a step."""
        now = time.monotonic_ns()
        self._put(now, now, STEP)

    def _put(self, start: int, end: int, what: int) -> None:
        ran = 0
        for clock in self._clocks:
            with suppress(OSError):  # the thread has ended
                ran += time.clock_gettime_ns(clock)
        self._file.write(ROW.pack(start, end, what, ran))


def launches(task: Path) -> bool:
    """Return whether a thread runs PyTorch's backward pass."""
    with suppress(OSError):
        return (task / "comm").read_text().startswith("pt_autograd_")
    return False


def rank() -> int:
    """Of this process, among `ranks`."""
    return int(os.environ.get("RANK", "0"))


def ranks() -> int:
    """Return the number of processes, each with its GPU, of the load."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join_cgroup(name: str, pid: int) -> None:
    """Move a process to a group of its own (no name: to the root), where cgroup2 permits it."""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split()
        if kind != "cgroup2":
            continue
        with suppress(OSError):
            group = Path(place) / name
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
