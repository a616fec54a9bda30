"""Processes that do nothing, as far as can be seen, hold no GPU while part of them is hidden."""

from dataclasses import replace
from errno import EACCES, ENOENT
from os import strerror
from re import search
from typing import Any, cast

import pytest

from agent import simulator as simulation
from agent.diagnosis.accounting import STATE_SECONDS
from agent.hardware.files import FileTree
from agent.model import State
from agent.sources import process, workload
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import AgentBench, first_gpus, watched

CHILD = r"^/proc/99999\b"
"""A child that each process has then."""


class HiddenFiles:
    """The files, but those whose path has `hidden`: they raise this error."""

    def __init__(self, files: FileTree, hidden: str, error: int) -> None:
        self._files, self.hidden, self._error = files, hidden, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def _checked(self, path: str) -> str:
        if search(self.hidden, path):
            raise OSError(self._error, strerror(self._error), path)
        return path

    def read(self, path: str) -> str:
        text = self._files.read(self._checked(path))
        return f"{text} 99999" if self.hidden == CHILD and path.endswith("/children") else text

    def reread(self, path: str) -> str:
        return self._files.reread(self._checked(path))

    def names(self, path: str) -> list[str]:
        return self._files.names(self._checked(path))

    def link(self, path: str) -> str:
        return self._files.link(self._checked(path))


SECONDS = 75  # held_after is 60


WAYS = {
    "hidepid=2, or no hostPID": (r"^/proc/\d+\b", ENOENT),
    "hidepid=1": (r"^/proc/\d+/", EACCES),
    "the main thread": (r"^/proc/\d+/(task/\d+/)?(sched)?stat\b", EACCES),
    "a child of another user": (CHILD, ENOENT),
    "a kernel without lists of children": (r"/children$", ENOENT),
}


def bench_of(hidden: str = "^$", error: int = ENOENT) -> AgentBench:
    clock = FrozenClock()
    machine = simulation.build(first_gpus("dgx-h100:held", 1), clock)
    files = cast(FileTree, HiddenFiles(machine.host.files, hidden, error))
    return watched(machine, clock, host=replace(machine.host, files=files))


def held(bench: AgentBench) -> float:
    spent = bench.run(SECONDS).samples.all(STATE_SECONDS)
    return sum(seconds for labels, seconds in spent.items() if State.HELD in labels)


def test_processes_that_are_seen_to_rest_hold_it() -> None:
    assert held(bench_of()) > 0


@pytest.mark.parametrize("way", WAYS)
def test_hidden_processes_hold_no_gpu(way: str) -> None:
    bench = bench_of(*WAYS[way])
    assert held(bench) == 0
    absences = bench.agent.poller.latest.absences(bench.clock.monotonic())
    why = [one.detail for one in absences if one.metric is workload.THREADS]
    assert why
    assert "hostPID" in why[0]


def test_memory_in_use_without_a_process_is_no_unused_gpu() -> None:
    """As the driver answers in a container without the host's processes."""
    bench = bench_of()
    bench.machine.nvml.nvmlDeviceGetComputeRunningProcesses = lambda *_: []
    bench.machine.nvml.nvmlDeviceGetGraphicsRunningProcesses = lambda *_: []
    bench.run(5)
    absences = bench.agent.poller.latest.absences(bench.clock.monotonic())
    why = [one.detail for one in absences if one.metric is process.PROCESSES]
    assert why
    assert "hostPID" in why[0]
