"""Threads, cgroup and network namespace of a GPU's processes, on made-up files."""

from pathlib import Path

import pytest

from agent.sources import workload as work
from tests.support.process_tree import CGROUP, GPU, ProcessTree, of

PIDS = 100


@pytest.fixture
def tree(tmp_path: Path) -> ProcessTree:
    tree = ProcessTree(tmp_path)
    tree.start(PIDS)
    tree.occupy(PIDS)
    return tree


def pipeline(tree: ProcessTree, seconds: float) -> None:
    """Six threads that decode on four cores, and a main thread that mostly sleeps."""
    tree.does(PIDS, "S", 4.1 * seconds)
    tree.thread(PIDS, PIDS, "S", 0.1 * seconds)
    for tid in range(101, 107):
        tree.thread(PIDS, tid, "R", 4 / 6 * seconds, queued=2 / 6 * seconds)
    for tid in range(107, 140):
        tree.thread(PIDS, tid, "S", 0.0)


def test_threads_that_decode_are_seen_though_the_first_one_sleeps(tree: ProcessTree) -> None:
    for second in range(12):
        pipeline(tree, float(second))
        reading = tree.read()
    told = of(reading)
    assert told[work.THREADS] == 7
    assert told[work.BUSIEST_THREAD] == pytest.approx(4 / 6, abs=0.02)
    assert told[work.THREADS_QUEUED] == pytest.approx(0.33, abs=0.02)
    assert told[work.THREADS_WAITING] == 0.0


def test_between_surveys_only_active_threads_are_read(tree: ProcessTree) -> None:
    asked = []
    for second in range(12):
        pipeline(tree, float(second))
        tree.read()
        asked.append(sum("/task/" in path and "stat" in path for path in tree.tree.asked))
    assert max(asked) > 50
    assert sorted(asked)[len(asked) // 2] <= 2 * 7


def test_threads_that_wait_for_a_disk(tree: ProcessTree) -> None:
    for second in range(8):
        tree.thread(PIDS, PIDS, "S", 0.0)
        tree.thread(PIDS, 101, "D", 0.05 * second)
        reading = tree.read()
    assert of(reading)[work.THREADS_WAITING] == 1.0


def test_nothing_is_told_of_threads_that_cannot_be_seen(tree: ProcessTree) -> None:
    for _ in range(7):
        reading = tree.read()
    assert work.THREADS not in of(reading)


def test_the_cgroup_of_the_job_tells_who_waited(tree: ProcessTree) -> None:
    folder = f"/sys/fs/cgroup{CGROUP}"
    stalled = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1\n"
    tree.write(f"{folder}/io.pressure", stalled)
    tree.write(f"{folder}/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 1500000\n")
    tree.write(f"{folder}/io.stat", "8:0 rbytes=100 wbytes=7 rios=1\n8:16 rbytes=20 wbytes=0\n")
    tree.read()
    told = {s.metric: s.value for s in tree.read().samples if s.labels[:2] == GPU}
    assert told[work.CGROUP_STALLED] == pytest.approx(2.5)
    assert told[work.CGROUP_THROTTLED] == pytest.approx(1.5)
    assert (told[work.CGROUP_READ], told[work.CGROUP_WRITTEN]) == (120.0, 7.0)


def test_what_the_network_namespace_received(tree: ProcessTree) -> None:
    head = "Inter-|   Receive\n face |bytes packets\n"
    tree.write(f"/proc/{PIDS}/net/dev", f"{head}    lo: 10 1 0\n  eth0:  990 2 0\n")
    tree.read()
    assert of(tree.read())[work.RECEIVED] == 1000.0


ODD = ("", "some", "some avg10=0 total=x", "\0\0", "some total=" + "9" * 99)


@pytest.mark.parametrize("text", ODD)
def test_odd_files_of_a_cgroup_are_no_figures(tree: ProcessTree, text: str) -> None:
    for name in ("io.pressure", "cpu.stat", "io.stat"):
        tree.write(f"/sys/fs/cgroup{CGROUP}/{name}", text)
    tree.write(f"/proc/{PIDS}/net/dev", text)
    tree.read()
    assert not of(tree.read()).keys() & set(work.OF_CGROUP)
