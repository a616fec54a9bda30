"""Reads of a process's memory may block; other reads do not wait for them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from agent.bounds import LOOK_UP_LATE, MOST_LOOK_UPS
from agent.config.settings import Settings
from agent.sources import workload
from agent.threads import at_once, on_a_thread
from tests.support.patience import PATIENCE
from tests.support.process_tree import GPU, OTHER, ProcessTree

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
