"""A process with thousands of threads, or with a thousand children a second, costs no more than
others."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from agent import bounds
from agent.bounds import LOOK_UP_LATE, MOST_LOOK_UPS
from agent.config.settings import Settings
from agent.hardware.files import FileTree
from agent.jobs import process_times
from agent.jobs.process_times import GpuTimes, ProcessTimes
from agent.sources import workload
from agent.threads import at_once, on_a_thread
from tests.support.patience import PATIENCE
from tests.support.process_tree import GPU, OTHER, ProcessTree, pids_asked

MAIN = 100


class Crowd(FileTree):
    """A process with so many threads and so many children, none of which outlives a second: its
    files are made up as they are read."""

    def __init__(self, threads: int = 0, children: int = 0) -> None:
        self.threads, self.children = range(1000, 1000 + threads), children
        self.second = 0
        self.asked: list[str] = []

    def read(self, path: str) -> str:
        self.asked.append(path)
        pid, file = path.split("/")[2], path.rpartition("/")[2]
        if file == "children" and path == f"/proc/{MAIN}/task/{MAIN}/children":
            return " ".join(str(pid) for pid in self._alive())
        if int(pid) != MAIN and int(pid) not in self._alive():
            raise FileNotFoundError(2, "ended", path)
        if file == "stat":
            used = 50 * self.second if path == f"/proc/{MAIN}/stat" else 0
            ended = round(0.1 * self.children) * self.second if int(pid) == MAIN else 0
            tid = path.split("/")[-2]
            return f"{tid} (x) R 1 1 1 0 -1 0 0 0 0 0 {used} 0 {ended} 0 20 0 1 0 7 {'0 ' * 30}"
        if file == "schedstat":
            return f"{self.second * 250_000_000 if path.endswith(f'{MAIN}/schedstat') else 0} 0 1"
        return ""

    def names(self, path: str) -> list[str]:
        return [str(MAIN), *map(str, self.threads)] if path == f"/proc/{MAIN}/task" else []

    def link(self, path: str) -> str:
        raise FileNotFoundError(2, "no link", path)

    def _alive(self) -> range:
        first = 10_000 + self.children * self.second
        return range(first, first + self.children)


def crowded(files: Crowd, seconds: int) -> list[GpuTimes]:
    """Readings of its main process; `files.asked` has the files of the one that took most."""
    times, found, most = ProcessTimes(files), [], list[str]()
    for second in range(seconds):
        files.second = second
        files.asked.clear()
        reading = times.read(GPU, (MAIN,), {MAIN}, float(second))
        times.forget([GPU], float(second))
        assert reading is not None
        found.append(reading)
        most = max(most, [*files.asked], key=len)
    files.asked = most
    return found


def test_a_thousand_processes_that_come_and_go_in_a_second() -> None:
    """None of them lives long enough to be read twice; the kernel adds up what they used."""
    files = Crowd(children=1000)
    found = crowded(files, 8)
    assert [one.working.running for one in found[2:]] == pytest.approx([1.0 + 0.25] * 6)
    assert len(pids_asked(files.asked)) <= 2 * bounds.MOST_DESCENDANTS + 2


def test_a_process_with_five_thousand_threads() -> None:
    files = Crowd(threads=6000)
    found = crowded(files, 40)
    assert len(files.asked) <= bounds.MOST_LISTED + bounds.MOST_ASKED + 2 * bounds.MOST_FOLLOWED + 9
    assert (found[-1].launching or process_times.NONE).running == pytest.approx(0.25)
    assert found[-1].working.running == pytest.approx(0.25), "of threads that are not read, too"


T = TypeVar("T")
BLOCKS = ("cmdline", "environ", "maps", "smaps", "auxv")


def test_command_lines_are_read_only_where_names_are_on(tmp_path: Path) -> None:
    for info in (False, True):
        tree = ProcessTree(tmp_path / str(info), info=info)
        tree.start(100)
        tree.occupy(100)
        tree.read()
        assert ("/proc/100/cmdline" in tree.tree.asked) is info


def test_a_process_whose_memory_is_locked_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = ProcessTree(tmp_path, info=True, spawn=on_a_thread)
    tree.start(100)
    tree.start(200)
    unlocked, read, blocked = threading.Event(), tree.tree.read, set[str]()

    def locked(path: str) -> str:
        if path.startswith("/proc/100/") and path.endswith(BLOCKS):
            blocked.add(threading.current_thread().name)
            assert unlocked.wait(PATIENCE)
        return read(path)

    monkeypatch.setattr(tree.tree, "read", locked)
    tree.occupy(100)
    tree.occupy(200, gpu=OTHER)
    for _ in range(3):
        reading = tree.read()
    labels = {labels[:2] for metric, labels, _ in reading.samples if metric is workload.JOB_PIDS}
    cores = {labels for metric, labels, _ in reading.samples if metric is workload.WORKERS}
    unlocked.set()
    assert cores == {GPU, OTHER}
    assert labels == {GPU, OTHER}, f"it has a job without its environment after {LOOK_UP_LATE} s"
    assert blocked == {"process-memory"}


def test_threads_that_block_are_bounded(tmp_path: Path) -> None:
    begun: list[str] = []

    def never(name: str, _: Callable[[], T], /) -> Future[T]:
        begun.append(name)
        return Future()

    tree = ProcessTree(tmp_path, spawn=never)
    pids = tuple(range(100, 120))
    for pid in pids:
        tree.start(pid)
    tree.occupy(*pids)
    for _ in range(4):
        tree.read()
    assert len(begun) == MOST_LOOK_UPS


def test_names_that_are_switched_on_later_are_looked_up(tmp_path: Path) -> None:
    tree = ProcessTree(tmp_path, spawn=at_once)
    tree.start(100)
    tree.occupy(100)
    tree.read()
    tree.configuration.current = Settings(workload.JobConfig(info=True))
    reading = tree.read()
    names = {labels[2] for metric, labels, _ in reading.samples if metric is workload.JOB_PIDS}
    assert names == {"train.py:100"}
