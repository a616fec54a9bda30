"""Thread times of a GPU's processes, on made-up files of /proc: no second is missed or counted
twice, whatever comes and goes."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.jobs.process_times import NONE, GpuTimes, ProcessTimes, Times
from agent.model import Reason
from agent.sources import workload
from tests.support.process_tree import GPU, OTHER, ProcessTree

MAIN = 100


class Reader:
    """Reads the processes of one GPU once a second, and adds up what is found."""

    def __init__(self, tree: ProcessTree, *pids: int) -> None:
        self.tree, self.pids = tree, pids or (MAIN,)
        self.times = ProcessTimes(tree.tree)
        self.at = 0.0
        self.launching = self.working = NONE

    def read(self, after: float = 1.0) -> GpuTimes | None:
        self.at += after
        self.tree.tree.asked.clear()
        found = self.times.read(GPU, self.pids, set(self.pids), self.at)
        self.times.forget([GPU], self.at)
        if found is not None:
            self.launching = self.launching.plus(found.launching or NONE)
            self.working = self.working.plus(found.working)
        return found

    def found(self, after: float = 1.0) -> GpuTimes:
        """The next reading, of processes that are there."""
        reading = self.read(after)
        assert reading is not None
        return reading


def runs(
    tree: ProcessTree, main: float, whole: float | None = None, state: str = "S", queued: float = 0
) -> None:
    """The main thread has run for so many seconds, all threads together for `whole`."""
    tree.thread(MAIN, MAIN, state, main, queued)
    tree.does(MAIN, state, main if whole is None else whole)


@pytest.fixture
def alone(tmp_path: Path) -> ProcessTree:
    """One process without loaders."""
    tree = ProcessTree(tmp_path)
    tree.start(MAIN)
    runs(tree, 0.0)
    return tree


def test_a_main_thread_that_cannot_be_read_is_absent_and_not_at_rest(alone: ProcessTree) -> None:
    reader = Reader(alone)
    reader.read()
    shutil.rmtree(alone.root / f"proc/{MAIN}/task/{MAIN}")
    alone.does(MAIN, "R", 0.9)
    assert reader.found().launching is None
    alone.occupy(MAIN)
    absences = alone.read().absences
    found = {(a.reason, a.labels) for a in absences if a.metric is workload.THREADS}
    assert found == {(Reason.DENIED, GPU)}


# ---- counters without gaps


def test_the_first_reading_adds_nothing_to_what_it_finds(alone: ProcessTree) -> None:
    runs(alone, 5000.0, whole=9000.0, queued=70.0)
    assert Reader(alone).read() == GpuTimes(NONE, NONE, NONE, 0, 0.0)


def test_nothing_is_missed_between_two_readings_however_far_apart(alone: ProcessTree) -> None:
    reader = Reader(alone)
    reader.read()
    ran = 0.0
    for after, more in ((1.0, 0.9), (0.1, 0.05), (7.3, 6.0), (1.0, 0.0), (2.0, 1.234)):
        ran += more
        runs(alone, ran, queued=ran / 2)
        reader.read(after)
    assert reader.launching == pytest.approx(Times(ran, ran / 2, 0.0))
    assert reader.working == pytest.approx(NONE, abs=0.011)  # /proc/PID/stat counts by 10 ms


def test_other_threads_of_a_process_are_the_rest_of_its_time(alone: ProcessTree) -> None:
    reader = Reader(alone)
    reader.read()
    for second in range(1, 31):
        runs(alone, 0.301 * second, whole=round(2.5 * second, 2))
        reader.read()
    assert reader.launching.running == pytest.approx(0.301 * 30)
    assert reader.working.running == pytest.approx((2.5 - 0.301) * 30, abs=0.02)


def test_uninterruptible_sleep_counts_for_the_time_since_the_reading_before(
    alone: ProcessTree,
) -> None:
    reader = Reader(alone)
    for state, after in (("S", 1.0), ("D", 1.0), ("D", 2.5), ("S", 1.0)):
        runs(alone, 0.0, state=state)
        reader.read(after)
    assert reader.launching == Times(0.0, 0.0, 3.5)


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(-2, 5), st.sampled_from("RSDZT"))))
def test_no_time_is_negative_whatever_counters_do(
    alone: ProcessTree, readings: list[tuple[float, float, str]]
) -> None:
    reader, ran = Reader(alone), 10.0
    for after, more, state in readings:
        ran = max(0.0, ran + more)
        runs(alone, ran, state=state, queued=ran)
        found = reader.found(after)
        assert min(*(found.launching or NONE), *found.working, found.busiest) >= 0.0


def test_threads_of_the_backward_pass_launch_too(alone: ProcessTree) -> None:
    reader = Reader(alone)
    first = reader.found()
    assert (first.pinning, first.training) == (0, 0)
    alone.write(f"/proc/{MAIN}/status", "Name:\tx\nRssShmem:\t  192768 kB\n")
    for second in range(13):
        runs(alone, 0.4 * second, whole=1.7 * second)
        named(alone, 105, "pt_autograd_0", 0.5 * second)
        alone.thread(MAIN, 106, "S", 0.8 * second)
        found = reader.found()
    assert (found.launching or NONE).running == pytest.approx(0.9)
    assert (found.pinning, found.training) == (1, 1)
    assert found.working.running == pytest.approx(0.8, abs=0.011)
    assert (found.workers, found.busiest) == (1, pytest.approx(0.8))


def test_all_threads_of_a_process_of_xla_dispatch(alone: ProcessTree) -> None:
    reader = Reader(alone)
    for second in range(13):
        runs(alone, 0.4 * second, whole=0.6 * second)
        named(alone, 105, "py_xla_execute", 0.0)
        named(alone, 106, "python3", 0.2 * second)
        found = reader.found()
    assert found.launching == NONE
    assert found.dispatching.running == pytest.approx(0.6, abs=0.011)
    assert found.working.running == 0.0


def named(tree: ProcessTree, tid: int, name: str, ran: float, state: str = "S") -> None:
    """A thread of the main process with a name of its own."""
    tree.thread(MAIN, tid, state, ran)
    path = f"proc/{MAIN}/task/{tid}/stat"
    (tree.root / path).write_text((tree.root / path).read_text().replace("(python3)", f"({name})"))


@pytest.mark.parametrize(
    ("main", "others", "launches"),
    [
        (0.02, (0.01,), True),
        (0.02, (0.9,), False),  # two that do as much: a pool
        (0.02, (0.2,), False),
        (0.3, (), False),  # the main thread launches while it works at all
    ],
)
def test_one_thread_that_runs_in_place_of_the_main_one_launches(
    alone: ProcessTree, main: float, others: tuple[float, ...], launches: bool
) -> None:
    """The engine of a server, while the main thread answers clients."""
    reader, whole = Reader(alone), main + 0.9 + sum(others)
    for second in range(13):
        runs(alone, main * second, whole=whole * second)
        for number, share in enumerate((0.9, *others)):
            named(alone, 110 + number, "python3", share * second)
        found = reader.found()
    launching = (found.launching or NONE).running
    assert launching == pytest.approx(main + 0.9 if launches else main)
    assert launching + found.working.running == pytest.approx(whole, abs=0.011)


@pytest.mark.parametrize(("main", "woken"), [(0.0, 200), (0.4, 0)], ids=["asks for lock", "runs"])
def test_no_engine_stays_beside_a_main_thread(alone: ProcessTree, main: float, woken: int) -> None:
    reader = Reader(alone)
    for second in range(44):
        ran = 0.03 * second + main * max(0, second - 20)
        alone.thread(MAIN, MAIN, "S", ran, woken=woken * max(0, second - 20))
        alone.does(MAIN, "S", ran + 0.99 * second)
        named(alone, 110, "python3", 0.99 * second)
        found = reader.found()
    assert (found.launching or NONE).running == pytest.approx(0.03 + main)
    assert found.working.running == pytest.approx(0.99, abs=0.011)


# ---- workers


def test_a_compiler_counts_whole_although_its_own_children_are_brief(tree: ProcessTree) -> None:
    reader = Reader(tree)
    for pid in range(500, 520):
        tree.start(pid, MAIN, at=4999.0)
        tree.does(pid, "S", 0.0, ended=0.9)
        reader.found()
        tree.end(pid)
        tree.does(MAIN, "S", 0.0, ended=0.9 * (pid - 499))
        reader.found()
    assert reader.working.running == pytest.approx(0.9 * 20, rel=0.15)


def test_descendants_work_for_the_gpu_and_say_how_many_do(tree: ProcessTree) -> None:
    reader = Reader(tree)
    for second in range(5):
        tree.does(101, "R", 0.75 * second)
        tree.does(102, "D", 0.0)
        tree.write("/proc/101/schedstat", f"0 {0.25e9 * second:.0f} 1\n")
        found = reader.found()
    assert found.working == pytest.approx(Times(0.75, 0.25, 1.0))
    assert (found.workers, found.busiest) == (2, 1.0)  # 103 sleeps


def test_children_that_came_and_went_between_two_readings(tree: ProcessTree) -> None:
    """A loader that runs a decoder for each file, and waits for it."""
    reader = Reader(tree)
    for second in range(9):
        tree.does(101, "S", 0.05 * second, ended=0.6 * second)
        found = reader.found()
    assert found.working.running == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("own", "children", "late"),
    [(1.0, 0.0, 0), (1.0, 0.0, 1), (0.0, 0.5, 0)],
    ids=["counted at once", "counted a reading later", "with its own children"],
)
def test_a_loader_that_ends_is_not_counted_twice(
    tree: ProcessTree, own: float, children: float, late: int
) -> None:
    """The kernel adds its children to its parent with it, though each counted when it ended."""
    reader, each = Reader(tree), own + children
    for second in range(12):
        if second < 6:
            tree.does(101, "S", 80 * own + own * second, ended=80 * children + children * second)
        elif second == 6:
            tree.end(101)
        tree.does(MAIN, "S", 0.5 * second, ended=85 * each if second >= 6 + late else 0.0)
        assert reader.found().working.running <= 0.5 + each + 1e-9, second
    assert reader.working.running == pytest.approx(0.5 * 11 + 5 * each)


def test_threads_are_listed_often_at_first_and_then_each_ten_seconds(alone: ProcessTree) -> None:
    reader = Reader(alone)
    listings = []
    for second in range(100):
        alone.tree.listed.clear()
        reader.read()
        if f"/proc/{MAIN}/task" in alone.tree.listed and second % 2:
            listings.append(second)
    assert len([second for second in listings if second > 62]) <= 20


@pytest.mark.parametrize(
    ("state", "share", "after"),
    [("R", 0.5, 12), ("D", 0.0, 31)],
    ids=["runs", "sleeps for a disk, without any time of a core"],
)
def test_a_thread_that_begins_to_work_late_is_found(
    alone: ProcessTree, state: str, share: float, after: int
) -> None:
    """Threads that slept are left out of most lists; time that none of the others used is noticed
    at once."""
    for tid in range(101, 131):
        alone.thread(MAIN, tid, "S", 0.0)
    reader = Reader(alone)
    for _ in range(95):
        reader.read()
    asked = []
    for second in range(1, after + 2):
        alone.thread(MAIN, 130, state, share * second, 0.25 * second)
        runs(alone, 0.3 * second, whole=(0.3 + share) * second)
        found = reader.found()
        asked.append(sum("/task/" in path for path in alone.tree.asked))
    assert found.working == pytest.approx(Times(share, 0.25, float(state == "D")), abs=0.011)
    assert found.workers == 1
    assert sorted(asked)[len(asked) // 2] < 10


def test_a_thread_that_ends_between_two_readings_loses_nothing(alone: ProcessTree) -> None:
    alone.thread(MAIN, 105, "R", 0.0)
    reader = Reader(alone)
    reader.read()
    alone.thread(MAIN, 105, "R", 0.8, 0.1)
    runs(alone, 0.1, whole=0.9)
    assert reader.found().working == pytest.approx(Times(0.8, 0.1, 0.0))
    for name in ("stat", "schedstat"):
        (alone.root / f"proc/{MAIN}/task/105/{name}").unlink()
    runs(alone, 0.2, whole=1.5)  # 0.5 of it by the thread that has ended
    found = reader.found()
    assert found.working == pytest.approx(Times(0.5, 0.0, 0.0))
    assert (found.workers, found.busiest) == (0, 0.0)


# ---- processes that go, and that cannot be seen


def test_a_number_that_is_used_again_is_another_process(alone: ProcessTree) -> None:
    reader = Reader(alone)
    for second in range(3):
        runs(alone, 100.0 + second)
        reader.read()
    alone.start(MAIN, at=4500.0)
    runs(alone, 300.0)
    assert reader.read() == GpuTimes(NONE, NONE, NONE, 0, 0.0)
    runs(alone, 300.5)
    assert (reader.found().launching or NONE).running == pytest.approx(0.5)
    assert reader.times.known[MAIN].started == 4500.0


def test_of_processes_that_are_all_gone_nothing_is_known(tree: ProcessTree) -> None:
    reader = Reader(tree)
    assert reader.read() is not None
    tree.end(MAIN)
    assert reader.read() is None
    assert MAIN not in reader.times.known


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "cut short"])
def test_a_loader_that_cannot_be_read_is_passed_over(tree: ProcessTree, hidden: bool) -> None:
    reader = Reader(tree)
    reader.read()
    tree.write("/proc/101/stat", "101 (python3) R 1")
    if hidden:
        tree.tree.errors["/proc/101/stat"] = 13
    tree.does(102, "R", 0.5)
    assert reader.found().working.running == pytest.approx(0.5)


@pytest.mark.parametrize("schedstat", [None, "", "0\n", "x y z\n", "9" * 400 + " 0 0\n"])
def test_without_schedstat_time_is_counted_in_steps_of_ten_milliseconds(
    alone: ProcessTree, schedstat: str | None
) -> None:
    reader = Reader(alone)
    for second in range(11):
        runs(alone, 0.333 * second, whole=0.333 * second)
        path = f"/proc/{MAIN}/task/{MAIN}/schedstat"
        if schedstat is None:
            (alone.root / path[1:]).unlink()
        else:
            alone.write(path, schedstat)
        reader.read()
    assert reader.launching.running == pytest.approx(3.33, abs=0.011)
    assert reader.launching.queued == 0.0


# ---- several GPUs


def test_a_process_on_two_gpus_is_read_once_and_counts_for_both(tree: ProcessTree) -> None:
    times = ProcessTimes(tree.tree)
    for second in range(2):
        runs(tree, 0.5 * second)
        tree.tree.asked.clear()
        found = [times.read(gpu, (MAIN,), {MAIN}, float(second)) for gpu in (GPU, OTHER)]
    assert found[0] == found[1]
    assert found[0] is not None
    assert (found[0].launching or NONE).running == 0.5
    assert tree.tree.asked.count(f"/proc/{MAIN}/stat") == 1


def test_a_rank_that_is_the_parent_of_another_does_not_count_its_loaders(tree: ProcessTree) -> None:
    tree.start(110, parent=MAIN)
    tree.start(111, parent=110)
    times = ProcessTimes(tree.tree)
    for second in range(2):
        tree.does(111, "S", 0.5 * second)
        found = {
            gpu: times.read(gpu, (pid,), {MAIN, 110}, float(second))
            for gpu, pid in ((GPU, MAIN), (OTHER, 110))
        }
    mine, theirs = found[GPU], found[OTHER]
    assert mine is not None
    assert theirs is not None
    assert (mine.working.running, theirs.working.running) == (0.0, pytest.approx(0.5))


def test_two_processes_of_one_gpu_add_up(tree: ProcessTree) -> None:
    tree.start(200)
    reader = Reader(tree, MAIN, 200)
    for second in range(3):
        runs(tree, 0.3 * second)
        tree.thread(200, 200, "S", 0.4 * second)
        tree.does(200, "S", 0.4 * second)
        found = reader.found()
    assert (found.launching or NONE).running == pytest.approx(0.7)
