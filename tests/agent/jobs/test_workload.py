"""What is read of the processes behind a GPU, on made-up processes."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.jobs import follow, process_group
from agent.jobs.identity import JobLabels
from agent.model import Reason
from agent.sources import workload as work
from tests.support.process_tree import GPU, OTHER, ProcessTree, labels_of, of, pids_asked

# ---- what the processes do


def test_figures_over_a_window(tree: ProcessTree) -> None:
    tree.occupy(100)
    for second in range(9):
        tree.does(100, "D" if second == 8 else "S", 0.5 * second)
        tree.does(101, "D", 0.05 * second)
        tree.does(102, "R" if second % 2 else "S", 0.75 * second)
        reading = tree.read()
    assert of(reading) == {
        work.JOB: 1,
        work.JOB_PROCESS: 1,
        work.LIVES: pytest.approx(1008),
        work.LAUNCHER_CORES: pytest.approx(0.5),
        work.RECENT_CORES: pytest.approx(0.5 + 0.05 + 0.75),
        work.LAUNCHER_WAITING: 1 / 5,
        work.LOADERS: 2,
        work.LOADERS_WAITING: 1 / 2,
        work.LOADERS_RUNNING: pytest.approx((0.05 + 0.75) / 2),
        work.LOADERS_CORES: pytest.approx(0.8),
        work.ALLOWED_CORES: 4,
        work.CHILDREN_CORES: 0.0,
    }


def test_commands_too_short_to_be_met_are_counted_when_they_end(tree: ProcessTree) -> None:
    """A loader that runs a decoder for each file, and waits for it."""
    tree.occupy(100)
    for second in range(9):
        tree.does(101, "S", 0.05 * second, ended=0.6 * second)
        reading = tree.read()
    assert of(reading)[work.CHILDREN_CORES] == pytest.approx(0.6)


@pytest.mark.parametrize("late", [0, 1], ids=["counted at once", "counted a look later"])
def test_a_loader_that_ends_is_not_counted_twice(tree: ProcessTree, late: int) -> None:
    tree.occupy(100)
    for second in range(12):
        if second < 6:
            tree.does(101, "R", 100.0 + second)
        elif second == 6:
            tree.end(101)
        tree.does(100, "S", 0.5 * second, ended=106.0 if second >= 6 + late else 0.0)
        found = of(tree.read())
        assert found.get(work.CHILDREN_CORES, 0.0) <= 0.25, second


def test_before_two_looks_there_is_no_rate_and_no_zero(tree: ProcessTree) -> None:
    tree.occupy(100)
    assert of(tree.read()).keys() == {work.JOB, work.JOB_PROCESS, work.LIVES}


def test_without_loaders_their_number_is_known_and_their_shares_are_not(tree: ProcessTree) -> None:
    tree.occupy(100)
    tree.read()
    figures = of(tree.read())
    assert (figures[work.LOADERS], figures[work.LOADERS_CORES]) == (0, 0)
    assert not {work.LOADERS_WAITING, work.LOADERS_RUNNING} & figures.keys()


def test_launchers_add_up_and_either_may_wait(tree: ProcessTree) -> None:
    tree.start(200)
    tree.occupy(100, 200)
    for second in range(2):
        tree.does(100, "D" if second else "S", 0.3 * second)
        tree.does(200, "S" if second else "D", 0.4 * second)
        reading = tree.read()
    assert of(reading)[work.LAUNCHER_CORES] == pytest.approx(0.7)
    assert of(reading)[work.LAUNCHER_WAITING] == 1


def test_a_pid_that_is_used_again_starts_anew(tree: ProcessTree) -> None:
    tree.occupy(100)
    for _ in range(3):
        tree.read()
    tree.start(100, at=4500.0)
    tree.does(100, "S", 0.01)
    assert work.LAUNCHER_CORES not in of(tree.read())
    tree.does(100, "S", 0.51)
    assert of(tree.read())[work.LAUNCHER_CORES] == pytest.approx(0.5)


def test_processes_that_end_are_passed_over(tree: ProcessTree) -> None:
    tree.occupy(100)
    for second in range(3):
        tree.does(101, "R", second)
        tree.does(102, "R", second)
        tree.read()
    tree.end(101)
    assert of(tree.read())[work.LOADERS] == 1
    tree.end(100)
    reading = tree.read()
    assert of(reading).keys() == {work.JOB, work.JOB_PROCESS, work.LIVES}
    assert reading.absences == ()


def test_a_file_cut_short_is_a_process_that_ended(tree: ProcessTree) -> None:
    tree.occupy(100)
    tree.read()
    tree.does(102, "R", 0.0)
    tree.write("/proc/101/stat", "101 (python3) R 1")
    assert of(tree.read())[work.LOADERS] == 1


def test_a_name_may_hold_anything(tree: ProcessTree) -> None:
    tree.start(300, name="a) R 1 (b\n")
    tree.occupy(300)
    tree.read()
    tree.does(300, "D", 0.25)
    assert of(tree.read())[work.LAUNCHER_CORES] == pytest.approx(0.25)


# ---- which processes belong to the GPU


def test_loaders_are_found_below_any_thread_and_at_any_depth(tree: ProcessTree) -> None:
    tree.write("/proc/100/task/150/children", "")
    tree.start(201, parent=100, thread=150)
    tree.start(202, parent=201)
    tree.occupy(100)
    tree.read()
    tree.does(201, "R", 0.0)
    tree.does(202, "R", 0.0)
    assert of(tree.read())[work.LOADERS] == 2


def test_a_rank_that_is_the_parent_of_another_does_not_count_its_loaders(
    tree: ProcessTree,
) -> None:
    tree.start(110, parent=100)
    tree.start(111, parent=110)
    tree.occupy(100)
    tree.occupy(110, gpu=OTHER)
    tree.read()
    tree.does(110, "R", 0.0)
    tree.does(111, "D", 0.0)
    reading = tree.read()
    assert of(reading)[work.LOADERS] == 0
    assert of(reading, OTHER)[work.LOADERS] == 1


def test_a_process_on_two_gpus_is_looked_at_once_and_counts_for_both(tree: ProcessTree) -> None:
    tree.occupy(100)
    tree.occupy(100, gpu=OTHER)
    tree.read()
    tree.does(100, "S", 0.5)
    reading = tree.read()
    assert of(reading)[work.LAUNCHER_CORES] == of(reading, OTHER)[work.LAUNCHER_CORES] == 0.5
    assert tree.tree.asked.count("/proc/100/stat") == 1


def test_loaders_are_searched_for_every_two_seconds_and_at_once_for_a_new_launcher(
    tree: ProcessTree,
) -> None:
    tree.occupy(100)
    searched = []
    for second in range(9):
        tree.occupy(100, *([103] if second >= 6 else []))
        tree.read()
        if any(path.endswith("children") for path in tree.tree.asked):
            searched.append(second)
    assert searched == [0, 1, 3, 5, 6, 8]


def test_no_more_loaders_are_followed_than_agreed(tree: ProcessTree) -> None:
    for pid in range(1000, 1000 + 2 * process_group.MOST):
        tree.start(pid, parent=100)
    tree.occupy(100)
    tree.read()
    tree.read()
    assert len(pids_asked(tree.tree.asked)) == 1 + process_group.MOST


def test_a_kernel_that_lists_no_children_is_scanned_and_seldom(tree: ProcessTree) -> None:
    for pid in (100, 101, 102, 103):
        (tree.root / f"proc/{pid}/task/{pid}/children").unlink()
    tree.write("/proc/self/stat", "no process")
    tree.occupy(100)
    scans = []
    for second in range(24):
        tree.does(101, "R", 0.0)
        reading = tree.read()
        if "/proc" in tree.tree.listed:
            scans.append(second)
    assert of(reading)[work.LOADERS] == 1
    assert scans == [0, 11, 21]


# ---- how little is read


def test_nothing_is_read_for_a_gpu_without_a_process(tree: ProcessTree) -> None:
    tree.occupy()
    tree.occupy(gpu=OTHER)
    for _ in range(3):
        assert tree.read().samples == ()
        assert (tree.tree.asked, tree.tree.listed) == ([], [])


def test_a_gpu_of_unknown_activity_is_hungry(tree: ProcessTree) -> None:
    tree.gpu_processes.settle(GPU, (100,))
    tree.read()
    assert work.LAUNCHER_CORES in of(tree.read())


def test_a_gpu_that_is_lost_is_forgotten(tree: ProcessTree) -> None:
    tree.occupy(100)
    tree.occupy(103, gpu=OTHER)
    tree.gpu_processes.keep([OTHER])
    assert [gpu for gpu, _ in tree.gpu_processes] == [OTHER]


def test_a_look_costs_one_file_a_process(tree: ProcessTree) -> None:
    tree.occupy(100)
    for _ in range(7):  # between two searches
        tree.read()
    of_processes = [path for path in tree.tree.asked if path.count("/") == 3 and "stat" in path]
    assert sorted(of_processes) == [f"/proc/{pid}/stat" for pid in (100, 101, 102, 103)]


# ---- what is hidden


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOENT])
def test_a_hidden_process_costs_its_gpu_the_figures_and_no_other(
    tree: ProcessTree, number: int
) -> None:
    tree.start(200)
    tree.tree.errors["/proc/200/stat"] = number
    tree.occupy(200, 103)
    tree.occupy(100, gpu=OTHER)
    tree.read()
    reading = tree.read()
    told = {a.metric: (a.reason, a.detail) for a in reading.absences if a.labels == GPU}
    hidden = {*work.OF_PROCESSES, *work.OF_THREADS, *work.OF_CGROUP, work.LIVES, work.JOB}
    assert told.keys() == hidden
    assert {reason for reason, _ in told.values()} == {Reason.DENIED}
    assert all("process 200 " in detail for _, detail in told.values())
    assert work.LAUNCHER_CORES not in of(reading)
    assert work.LAUNCHER_CORES in of(reading, OTHER)


def test_a_loader_that_is_hidden_is_passed_over(tree: ProcessTree) -> None:
    tree.tree.errors["/proc/101/stat"] = errno.EACCES
    tree.occupy(100)
    tree.read()
    tree.does(102, "R", 0.0)
    assert of(tree.read())[work.LOADERS] == 1


# ---- arrivals and jobs


def test_what_the_agent_finds_is_as_old_as_its_process_and_who_comes_later_is_new(
    tree: ProcessTree,
) -> None:
    tree.occupy(100)
    assert of(tree.read())[work.LIVES] == pytest.approx(1000)
    tree.occupy(100, 103)
    assert of(tree.read())[work.LIVES] == 0
    assert of(tree.read())[work.LIVES] == 1
    tree.occupy(100)
    assert of(tree.read())[work.LIVES] == pytest.approx(1003)


def test_a_process_that_comes_to_an_idle_gpu_is_new(tree: ProcessTree) -> None:
    tree.occupy()
    tree.read()
    tree.occupy(100)
    assert of(tree.read())[work.LIVES] == 0


def test_nobody_is_named_who_was_not_asked_for(tree: ProcessTree) -> None:
    tree.occupy(100)
    ((*labels, key),) = labels_of(tree.read(), work.JOB)
    assert tuple(labels) == (*GPU, "", *JobLabels(runtime="process"))
    assert key
    assert labels_of(tree.read(), work.JOB_INFO) == []


def test_jobs_are_exported_by_name_where_the_user_asks(tmp_path: Path) -> None:
    tree = ProcessTree(tmp_path, info=True)
    for pid in range(100, 112):
        tree.start(pid)
    tree.occupy(*range(100, 112))
    reading = tree.read()
    names = [JobLabels(f"train.py:{pid}", "ada", "process") for pid in range(100, 108)]
    assert labels_of(reading, work.JOB_INFO) == [(*GPU, *one) for one in names]
    told = [labels[:-1] for labels in labels_of(reading, work.JOB)]
    assert told == [(*GPU, one.job_id, *one) for one in names]


def test_a_job_is_told_of_as_far_as_its_environment_may_be_read(tmp_path: Path) -> None:
    """Nothing but the known variables is kept; what a user wrote into them does no harm."""
    tree = ProcessTree(tmp_path, info=True)
    told = {"SLURM_JOB_PARTITION": 'a"\n\x1b[2J}' + "x" * 500, "SLURM_JOB_ACCOUNT": "bio"}
    secret = {"AWS_SECRET": "hunter2", "NO_VALUE": ""}
    for pid in (100, 101):
        tree.start(pid)
        tree.write(f"/proc/{pid}/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0\n")
        text = "".join(f"{k}={v}\0" for k, v in (told | secret).items()) + "odd\0\0"
        tree.write(f"/proc/{pid}/environ", text)
    tree.tree.errors["/proc/101/environ"] = errno.EACCES
    tree.occupy(100)
    tree.occupy(101, gpu=OTHER)
    reading = tree.read()
    named, hidden = (JobLabels(*labels[2:]) for labels in labels_of(reading, work.JOB_INFO))
    assert hidden == JobLabels("7", "ada", "slurm")
    assert named == hidden._replace(partition=named.partition, account="bio")
    assert named.partition.isprintable()
    assert len(named.partition) == 64
    assert "hunter2" not in repr(reading)
    tree.occupy()
    tree.occupy(gpu=OTHER)
    assert labels_of(tree.read(), work.JOB_INFO) == []


def test_gpus_of_one_job_have_one_key(tree: ProcessTree) -> None:
    tree.start(110, parent=100)
    tree.start(200)
    tree.occupy(100)
    tree.occupy(110, gpu=OTHER)
    tree.occupy(200, gpu=("2", "GPU-2"))
    keys = {labels[0]: labels[-1] for labels in labels_of(tree.read(), work.JOB)}
    assert keys["0"] == keys["1"] != keys["2"]


# ---- windows


STATES = st.lists(st.tuples(st.sampled_from("RDSZ"), st.floats(0, 1)), min_size=2, max_size=12)


@settings(deadline=None)
@given(st.lists(STATES, max_size=4))
def test_shares_stay_shares_whatever_processes_do(histories: list[list[tuple[str, float]]]) -> None:
    follows = []
    for history in histories:
        follows.append(follow.ProcessActivity(0.0))
        seconds = 0.0
        for at, (state, used) in enumerate(history):
            seconds += used
            follows[-1].readings.append(follow.ProcessReading(float(at), state, seconds, 0.0))
    loading = follow.loading(follows)
    assert 0 <= loading.number <= len(follows)
    assert 0 <= loading.cores <= loading.number + 1e-9
    assert (loading.running is None) == (loading.waiting is None) == (loading.number == 0)
    if loading.running is not None and loading.waiting is not None:
        assert 0 <= loading.waiting <= 1
        assert loading.cores / loading.number - 1e-9 <= loading.running <= 1


def test_the_number_in_its_own_namespace_is_told(tree: ProcessTree) -> None:
    tree.write("/proc/100/status", "Name:\tx\nNSpid:\t100\t7\n")
    tree.occupy(100)
    (told,) = [s.labels for s in tree.read().samples if s.metric is work.JOB_PROCESS]
    assert told[:4] == (*GPU, "100", "7")
