"""Data read of the processes on a GPU, on made-up processes."""

import errno
from pathlib import Path

import pytest

from agent import bounds
from agent.hardware import processes
from agent.jobs.identity import JobLabels
from agent.model import Reading, Reason
from agent.sources import workload as work
from tests.agent.jobs.test_process_times import MAIN, Reader
from tests.support.process_tree import CGROUP, GPU, OTHER, ProcessTree, labels_of, of, pids_asked


def seconds(reading: Reading, gpu: tuple[str, str] = GPU) -> dict[tuple[str, ...], float]:
    """Seconds of threads by role and what they do."""
    return {
        s.labels[2:]: s.value
        for s in reading.samples
        if s.metric is work.THREADS and s.labels[:2] == gpu
    }


def test_seconds_of_threads_are_counters(tree: ProcessTree) -> None:
    tree.occupy(100)
    for second in range(9):
        tree.thread(100, 100, "S", 0.4 * second, queued=0.1 * second)
        tree.does(100, "S", 0.5 * second)
        tree.does(101, "D", 0.05 * second)
        tree.does(102, "R" if second % 2 else "S", 0.75 * second)
        reading = tree.read()
    assert seconds(reading) == {
        ("launching", "running"): pytest.approx(3.2),
        ("launching", "queued"): pytest.approx(0.8),
        ("launching", "blocked"): 0.0,
        **{(role, doing): 0.0 for role in ("launching", "working") for doing in work.DOING[3:]},
        **{("dispatching", doing): 0.0 for doing in work.DOING},
        ("working", "running"): pytest.approx(8 * (0.1 + 0.05 + 0.75), abs=0.011),
        ("working", "queued"): 0.0,
        ("working", "blocked"): 8.0,
    }
    figures = of(reading)
    assert (figures[work.WORKERS], figures[work.BUSIEST]) == (2, 1.0)
    assert figures[work.NEWEST_PROCESS_AGE] == pytest.approx(1008)


def test_of_a_gpu_whose_processes_are_gone_nothing_is_known(tree: ProcessTree) -> None:
    tree.occupy(100)
    tree.read()
    tree.end(100)
    reading = tree.read()
    assert of(reading).keys() == {work.JOB_PIDS, work.JOB_PROCESS, work.NEWEST_PROCESS_AGE}
    assert reading.absences == ()


def test_stopped_processes_are_named(tree: ProcessTree) -> None:
    tree.start(200)
    tree.occupy(100, 200)
    tree.does(200, "T", 0.0)
    assert labels_of(tree.read(), work.STOPPED) == [(*GPU, "200")]


def test_a_name_may_hold_anything(tree: ProcessTree) -> None:
    tree.start(300, name="a) R 1 (b\n")
    tree.occupy(300)
    tree.read()
    tree.does(300, "D", 0.25)
    found = seconds(tree.read())
    assert (found["working", "running"], found["launching", "running"]) == (0.25, 0.0)


@pytest.mark.parametrize(("cores", "read"), [(0.04, True), (0.06, False)])
def test_bytes_of_processes_are_read_only_while_they_rest(
    tree: ProcessTree, cores: float, read: bool
) -> None:
    tree.write("/proc/100/io", "rchar: 1000\nwchar: 500\nread_bytes: 7\nwrite_bytes: 900\n")
    tree.occupy(100)
    tree.read()
    tree.does(100, "S", cores)
    assert of(tree.read()).get(work.PROCESS_BYTES) == (1900 if read else None)


ENDLESS = "9" * 5000


@pytest.mark.parametrize("text", [f"rchar: {ENDLESS}\nwchar: 5", "rchar: ²\nwchar: 5", "rchar: 5"])
def test_bytes_that_are_no_number_are_none(tree: ProcessTree, text: str) -> None:
    tree.write("/proc/100/io", text)
    assert processes.bytes_moved(tree.tree, 100) is None
    assert processes.uid({"Uid": ENDLESS}) is processes.uid({"Uid": "²"}) is None


# ---- the job's cgroup and network namespace


def test_the_cgroup_of_the_job_says_who_waited(tree: ProcessTree) -> None:
    folder = f"/sys/fs/cgroup{CGROUP}"
    stalled = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1\n"
    tree.write(f"{folder}/io.pressure", stalled)
    tree.write(f"{folder}/io.stat", "8:0 rbytes=100 wbytes=7 rios=1\n8:16 rbytes=20 wbytes=0\n")
    tree.occupy(100)
    found = {s.metric: s for s in tree.read().samples if s.metric in work.OF_CGROUP}
    assert found[work.CGROUP_STALLED].value == pytest.approx(2.5)
    assert found[work.CGROUP_STALLED].labels == (*GPU, "io")
    assert (found[work.CGROUP_READ].value, found[work.CGROUP_WRITTEN].value) == (120.0, 7.0)


def test_bytes_of_an_array_are_not_counted_for_its_disks_too(tree: ProcessTree) -> None:
    tree.write("/proc/devices", "Block devices:\n  9 md\n253 device-mapper\n")
    rows = ("9:0", 100), ("253:1", 100), ("259:0", 50), ("259:1", 50), ("8:0", 7)
    lines = "".join(f"{device} rbytes={n} wbytes={2 * n}\n" for device, n in rows)
    tree.write(f"/sys/fs/cgroup{CGROUP}/io.stat", lines)
    tree.occupy(100)
    assert [of(tree.read())[way] for way in (work.CGROUP_READ, work.CGROUP_WRITTEN)] == [107, 214]


def test_gpus_of_one_cgroup_read_it_once(tree: ProcessTree) -> None:
    tree.write(f"/sys/fs/cgroup{CGROUP}/io.stat", "8:0 rbytes=100 wbytes=7 rios=1\n")
    tree.occupy(100)
    tree.occupy(103, gpu=OTHER)
    reading = tree.read()
    assert of(reading)[work.CGROUP_READ] == of(reading, OTHER)[work.CGROUP_READ] == 100
    assert tree.tree.asked.count(f"/sys/fs/cgroup{CGROUP}/io.stat") == 1


def test_what_the_network_namespace_received(tree: ProcessTree) -> None:
    head = "Inter-|   Receive\n face |bytes packets\n"
    tree.write("/proc/100/net/dev", f"{head}    lo: 10 1 0\n  eth0:  990 2 0\n")
    tree.occupy(100)
    assert of(tree.read())[work.RECEIVED] == 1000.0


@pytest.mark.parametrize(
    "text", ["", "some", "some avg10=0 total=x", "\0\0", "some total=" + "9" * 99]
)
def test_odd_files_of_a_cgroup_are_no_figures(tree: ProcessTree, text: str) -> None:
    for name in ("io.pressure", "cpu.pressure", "io.stat"):
        tree.write(f"/sys/fs/cgroup{CGROUP}/{name}", text)
    tree.write("/proc/100/net/dev", text)
    tree.occupy(100)
    assert not of(tree.read()).keys() & set(work.OF_CGROUP)


# ---- which processes belong to the GPU


def test_loaders_are_found_below_any_thread_and_at_any_depth(tree: ProcessTree) -> None:
    tree.write("/proc/100/task/150/children", "")
    tree.start(201, parent=100, thread=150)
    tree.start(202, parent=201)
    tree.occupy(100)
    tree.read()
    tree.does(201, "R", 0.5)
    tree.does(202, "R", 0.25)
    assert seconds(tree.read())["working", "running"] == pytest.approx(0.75)


def test_a_thread_that_forked_once_is_asked_each_time(tree: ProcessTree) -> None:
    """A pool of loaders for each epoch; threads that never had a child are asked now and then."""
    for thread in (150, 151):
        tree.write(f"/proc/100/task/{thread}/children", "")
    tree.start(201, parent=100, thread=150)
    tree.occupy(100)
    tree.read()
    tree.end(201)
    tree.write("/proc/100/task/150/children", "")
    for _ in range(70):
        tree.read()
    tree.start(202, parent=100, thread=150)
    asked = set()
    for second in range(4):
        tree.does(202, "R", 0.5 * second)
        found = seconds(tree.read())
        asked |= {path for path in tree.tree.asked if path.endswith("children")}
    assert found["working", "running"] > 0.5
    assert "/proc/100/task/150/children" in asked
    assert "/proc/100/task/151/children" not in asked


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
    assert searched == [0, 2, 4, 6, 8]


def test_no_more_loaders_are_followed_than_agreed(tree: ProcessTree) -> None:
    for pid in range(1000, 1000 + 2 * bounds.MOST_DESCENDANTS):
        tree.start(pid, parent=100)
    tree.occupy(100)
    tree.read()
    tree.read()
    assert len(pids_asked(tree.tree.asked)) == 1 + bounds.MOST_DESCENDANTS


# ---- how little is read


def test_nothing_is_read_for_a_gpu_without_a_process(tree: ProcessTree) -> None:
    tree.occupy()
    tree.occupy(gpu=OTHER)
    for _ in range(3):
        assert tree.read().samples == ()
        assert (tree.tree.asked, tree.tree.listed) == ([], [])


def test_between_lists_of_threads_only_active_ones_are_read(tree: ProcessTree) -> None:
    """Six threads that decode, and 33 that sleep."""
    tree.occupy(100)
    asked = []
    for second in range(100):
        tree.does(100, "S", 4.1 * second)
        tree.thread(100, 100, "S", 0.1 * second)
        for tid in range(1001, 1007):
            tree.thread(100, tid, "R", 4 / 6 * second, queued=2 / 6 * second)
        for tid in range(1007, 1040):
            tree.thread(100, tid, "S", 0.0)
        reading = tree.read()
        asked.append(sum("/task/" in path and "stat" in path for path in tree.tree.asked))
    assert max(asked[1:]) > 50, "all of them, when they are listed"
    late = sorted(asked[62:])
    assert late[len(late) // 2] <= 2 * 7
    assert sum(count > 50 for count in late) <= 4, "every ten seconds"
    assert of(reading)[work.WORKERS] == 6
    assert of(reading)[work.BUSIEST] == pytest.approx(1.0, abs=0.02)


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
    shown = {a.metric: (a.reason, a.detail) for a in reading.absences if a.labels == GPU}
    hidden = {*work.OF_PROCESSES, *work.OF_CGROUP, work.NEWEST_PROCESS_AGE, work.JOB_PIDS}
    assert shown.keys() == hidden
    assert {reason for reason, _ in shown.values()} == {Reason.DENIED}
    assert all("process 200 " in detail for _, detail in shown.values())
    assert work.THREADS not in of(reading)
    assert len(seconds(reading, OTHER)) == len(work.ROLES) * len(work.DOING)


# ---- arrivals and jobs


def test_what_the_agent_finds_is_as_old_as_its_process_and_who_comes_later_is_new(
    tree: ProcessTree,
) -> None:
    tree.occupy(100)
    assert of(tree.read())[work.NEWEST_PROCESS_AGE] == pytest.approx(1000)
    tree.occupy(100, 103)
    assert of(tree.read())[work.NEWEST_PROCESS_AGE] == 0
    assert of(tree.read())[work.NEWEST_PROCESS_AGE] == 1
    tree.occupy(100)
    assert of(tree.read())[work.NEWEST_PROCESS_AGE] == pytest.approx(1003)


def test_jobs_are_exported_by_name_where_the_user_asks(tmp_path: Path) -> None:
    tree = ProcessTree(tmp_path, info=True)
    for pid in range(100, 112):
        tree.start(pid)
    tree.occupy(*range(100, 112))
    reading = tree.read()
    names = [JobLabels(f"train.py:{pid}", "ada", "process") for pid in range(100, 108)]
    assert labels_of(reading, work.JOB_INFO) == [(*GPU, *one) for one in names]
    shown = [labels[:-1] for labels in labels_of(reading, work.JOB_PIDS)]
    assert shown == [(*GPU, one.job_id, *one) for one in names]


def test_a_job_is_reported_as_far_as_its_environment_may_be_read(tmp_path: Path) -> None:
    """Nothing but the known variables is kept; what a user wrote into them does no harm, and names
    no account."""
    tree = ProcessTree(tmp_path, info=True)
    shown = {"APPTAINER_NAME": 'a"\n\x1b[2J}' + "x" * 500, "SLURM_JOB_ACCOUNT": "bio"}
    secret = {"AWS_SECRET": "hunter2", "NO_VALUE": ""}
    for pid in (100, 101):
        tree.start(pid)
        tree.write(f"/proc/{pid}/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0\n")
        text = "".join(f"{k}={v}\0" for k, v in (shown | secret).items()) + "odd\0\0"
        tree.write(f"/proc/{pid}/environ", text)
    tree.tree.errors["/proc/101/environ"] = errno.EACCES
    tree.occupy(100)
    tree.occupy(101, gpu=OTHER)
    reading = tree.read()
    named, alike = (JobLabels(*labels[2:]) for labels in labels_of(reading, work.JOB_INFO))
    assert named == JobLabels("7", "ada", "slurm", container=named.container)
    assert alike == named, "of one job the process that says most is asked"
    assert named.container.isprintable()
    assert len(named.container) == 64
    assert "hunter2" not in repr(reading)
    tree.occupy()
    tree.occupy(gpu=OTHER)
    assert labels_of(tree.read(), work.JOB_INFO) == []


def test_a_job_of_two_processes_is_one_series(tmp_path: Path) -> None:
    """A script started both in the background, in one process group, and has ended."""
    tree = ProcessTree(tmp_path, info=True)
    for pid in (100, 101):
        tree.start(pid)
        stat = (tree.root / f"proc/{pid}/stat").read_text()
        tree.write(f"/proc/{pid}/stat", stat.replace(f" 1 {pid} {pid} ", f" 1 99 {pid} "))
    tree.occupy(100, 101)
    tree.occupy(101, gpu=OTHER)
    for metric in (work.JOB_INFO, work.JOB_PIDS):
        first, second = labels_of(tree.read(), metric)
        assert (first[0], second[0]) == ("0", "1")
        assert first[2:] == second[2:]


def test_time_in_the_kernel_belongs_to_those_that_spent_it(tree: ProcessTree) -> None:
    """A loader reads files: the kernel fills its pages. The trainer saves files beside a thread
    that reads some; each page of fresh memory that it fills costs one fault."""
    reader = Reader(tree)
    for second in range(14):
        tree.does(101, "S", 0.5 * second, system=0.4 * second)
        tree.thread(MAIN, MAIN, "S", 0.3 * second)
        tree.thread(MAIN, 130, "R", 0.2 * second)
        tree.does(MAIN, "S", 0.5 * second, system=0.25 * second, faults=40_000 * second)
        found = reader.found()
    assert found.launching is not None
    assert found.launching.system == pytest.approx(0.25, abs=0.011)
    assert found.launching.fresh == pytest.approx(40_000 * processes.FAULT)
    assert found.working.system == pytest.approx(0.4, abs=0.011)
