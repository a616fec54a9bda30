"""Allocation of GPUs to jobs, from Slurm's output and the kubelet's socket.

The order of the made-up machine is awkward on purpose: NVML's index, the minor number and Slurm's
place are three different numbers of each GPU.
"""

import tomllib
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.settings import Configuration, Settings
from agent.hardware.host import Host
from agent.hardware.schedulers import Schedulers, SlurmJob
from agent.jobs import allocation
from agent.model import Absent, Reading, Reason
from agent.polling.reads import ReadCosts, is_due, perform
from agent.sources import allocation as source
from agent.sources import workload
from agent.sources.allocation import EXPIRED
from agent.sources.context import HostOptions
from tests.support.fake_host import FakePsutil
from tests.support.process_tree import GPU, OTHER, ProcessTree, labels_of

CASES = tomllib.loads(Path(__file__).with_name("allocation.toml").read_text("utf-8"))

THIRD = ("2", "GPU-2")
MINORS = {"GPU-0": 2, "GPU-1": 0, "GPU-2": 1}  # as the driver numbered them
GRES = """
NodeName=other[1-9] Name=gpu File=/dev/nvidia[0-7]
NodeName=node[01-03],login Name=gpu Type=h100 File=/dev/nvidia[1-2]  # then the first
Name=gpu File=/dev/nvidia0
Name=nic File=/dev/mlx5_0
"""
SLUID = "s5K1KKYAYG5D00"
NODE02 = ("node02", "gpu:h100:2(IDX:0,2),nic:1(IDX:0)")
SHOWN = SlurmJob("41", "eve", "bio", "gpu", [("node[01,03]", "gpu:h100:1(IDX:1)"), NODE02])


class Answers(Schedulers):
    """Slurm's and the kubelet's answers; errors are raised."""

    def __init__(self) -> None:
        self.jobs: list[SlurmJob] | OSError = []
        self.pods: bytes | OSError = FileNotFoundError()

    def slurm(self, host: str) -> list[SlurmJob]:
        assert host.partition(".")[0] == "node02"
        if isinstance(self.jobs, OSError):
            raise self.jobs
        return self.jobs

    def kubelet(self, path: str) -> bytes:
        if isinstance(self.pods, OSError):
            raise self.pods
        return self.pods


class AllocationTree(ProcessTree):
    """Three GPUs of a node of Slurm or Kubernetes; asked on the caller's thread."""

    def __init__(self, root: Path, *, slurm: bool = False) -> None:
        super().__init__(root, info=True)
        self.answers = Answers()
        self.write("/proc/sys/kernel/hostname", "node02.example.org\n")
        for number, (uuid, minor) in enumerate(MINORS.items()):
            text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
            self.write(f"/proc/driver/nvidia/gpus/0000:0{number}:00.0/information", text)
        for gpu in (GPU, OTHER, THIRD):
            self.occupy(gpu=gpu)
        host = Host(self.tree, FakePsutil(), {1000: "ada"}.__getitem__, schedulers=self.answers)
        asked = source.AllocationConfig(slurm)
        options = HostOptions(Configuration(Settings(workload.JobConfig(info=True), asked)))
        (self._given,) = source.reads(host, options, self.gpu_processes, self.allocations)

    def look(self) -> Reading:
        reading, _ = perform(self._given, self.clock, ReadCosts())
        assert not reading.failure, reading.failure
        return reading

    def allocated(self) -> dict[str, float]:
        """By NVML's index."""
        return {labels[0]: value for _, labels, value in self.look().samples}

    def shown(self) -> list[tuple[str, ...]]:
        """Index, number, user and account of each job that is exported."""
        infos = labels_of(self.read(), workload.JOB_INFO)
        return [(i[0], i[2], i[3], i[6]) for i in infos]


def test_without_a_scheduler_no_gpus_are_allocated(tmp_path: Path) -> None:
    reading = AllocationTree(tmp_path).look()
    assert (reading.samples, [one.reason for one in reading.absences]) == ((), [Reason.MISSING])


def test_slurms_own_word_where_it_may_be_asked(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path, slurm=True)
    tree.write("/etc/slurm/gres.conf", GRES)
    tree.answers.jobs = [SHOWN]
    assert tree.allocated() == {"0": 0, "1": 1, "2": 1}  # places 0 and 2 are minors 1 and 0
    assert tree.shown() == [("1", "41", "eve", "bio"), ("2", "41", "eve", "bio")]
    tree.start(100)
    tree.write("/proc/100/cgroup", "0::/system.slice/slurmstepd.scope/job_41/step_0/user\n")
    tree.occupy(100, gpu=OTHER)
    assert tree.shown() == [("1", "41", "eve", "bio"), ("2", "41", "eve", "bio")], "reported once"
    tree.answers.jobs = []
    assert set(tree.allocated().values()) == {0}


def test_a_job_that_is_not_described_may_have_any_gpu(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path, slurm=True)
    tree.write("/etc/slurm/gres.conf", GRES)
    tree.answers.jobs = [SHOWN, SlurmJob("9")]
    reading = tree.look()
    assert {labels[0] for _, labels, _ in reading.samples} == {"1", "2"}
    assert {one.reason for one in reading.absences} == {Reason.DENIED}


def test_a_folder_without_a_number_is_a_job_of_slurm(tmp_path: Path) -> None:
    """Slurm 26.05 names it by an id of its own, which scontrol says of the job."""
    tree = AllocationTree(tmp_path, slurm=True)
    tree.start(100)
    tree.write("/proc/100/cgroup", f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/user\n")
    tree.answers.jobs = OSError("squeue fails")
    tree.occupy(100, gpu=THIRD)
    assert {one.reason for one in tree.look().absences} == {Reason.FAILED}
    assert tree.shown() == [("2", SLUID, "ada", "")]
    job = SlurmJob("42", "ada", gres=[("node02", "gpu(IDX:1)")], sluid=SLUID)
    tree.answers.jobs = [SHOWN, job]
    assert tree.allocated() == {"0": 1, "1": 1, "2": 1}
    assert ("2", "42", "ada", "") in tree.shown()


def on_one_gpu(place: int) -> SlurmJob:
    return SlurmJob("7", "ada", gres=[("node02", f"gpu:1(IDX:{place})")])


def test_a_place_that_slurms_order_does_not_have_is_unknown(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path, slurm=True)
    tree.answers.jobs = [on_one_gpu(5)]
    assert {a.reason for a in tree.look().absences} == {Reason.UNKNOWN}


# ---- words


@pytest.mark.parametrize(("text", "expected"), [("0,2-4", [0, 2, 3, 4]), ("", []), ("7", [7])])
def test_lists_of_numbers(text: str, expected: list[int]) -> None:
    assert [*map(int, allocation.padded(text))] == expected


@pytest.mark.parametrize("text", ["x", "3-", "1-99999999999", "0:1", "3-1", "²", "0-70000"])
def test_what_is_no_list_of_numbers_is_unknown(text: str) -> None:
    with pytest.raises(Absent, match=text):
        allocation.padded(text)


def test_names_in_brackets() -> None:
    assert allocation.expanded("node[08-10],login") == ["node08", "node09", "node10", "login"]
    assert allocation.expanded("rack[0-1]node[0-1]") == [
        *("rack0node0", "rack0node1", "rack1node0", "rack1node1")
    ]


@pytest.mark.parametrize(("pattern", "name", "count"), CASES["nodes"])
def test_nodes_of_real_machines(pattern: str, name: str, count: int) -> None:
    names = allocation.expanded(pattern)
    assert name in names
    assert len(names) == len(set(names)) == count


@pytest.mark.parametrize("pattern", ["n[0-99999999]", "a[0-999]b[0-999]", "n[1-2", "n1-2]"])
def test_a_list_of_too_many_nodes_is_unknown_not_cut(pattern: str) -> None:
    with pytest.raises(Absent, match="the list"):
        allocation.expanded(pattern)


def test_a_line_of_a_file_may_go_on_in_the_next() -> None:
    assert allocation.slurm_order("Name=gpu \\\n  File=/dev/nvidia[2,0]", "n1", [0, 2]) == [2, 0]


def test_the_file_of_slurmctld_goes_before_a_stale_one(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path, slurm=True)
    tree.write("/etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-2]")
    tree.write("/run/slurm/conf/gres.conf", "Name=gpu File=/dev/nvidia[2,1,0]")
    tree.answers.jobs = [on_one_gpu(0)]
    assert tree.allocated() == {"0": 1, "1": 0, "2": 0}


@pytest.mark.parametrize(("host", "nodes", "found"), CASES["hosts"])
def test_a_host_has_a_short_name_or_a_whole_one(host: str, nodes: str, found: bool) -> None:
    assert allocation.is_among(host, nodes) is found


@pytest.mark.parametrize("gres", CASES["orders"])
def test_an_order_that_is_not_known_leaves_gpus_unknown(tmp_path: Path, gres: str) -> None:
    tree = AllocationTree(tmp_path, slurm=True)
    tree.write("/etc/slurm/gres.conf", gres)
    tree.answers.jobs = [on_one_gpu(1)]
    reading = tree.look()
    assert reading.samples == ()
    assert {one.reason for one in reading.absences} == {Reason.UNKNOWN}


def test_parts_of_a_gpu_shift_the_places_of_others(tmp_path: Path) -> None:
    """GPU 0 in three instances: IDX:2 is the third of them, and not GPU 2."""
    tree = AllocationTree(tmp_path, slurm=True)
    tree.gpu_processes.divided[GPU] = ("MIG-1", "MIG-2", "MIG-3")
    tree.answers.jobs = [SlurmJob("7", "ada", gres=[("node02", "gpu:1g.10gb:1(IDX:2)")])]
    reading = tree.look()
    assert reading.samples == ()
    assert {one.reason for one in reading.absences} == {Reason.UNKNOWN}


def test_a_gpu_without_a_minor_number_shifts_the_places_of_others(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path, slurm=True)
    text = "GPU UUID: \t GPU-0\nDevice Minor: \t ?\n"
    tree.write("/proc/driver/nvidia/gpus/0000:00:00.0/information", text)
    tree.answers.jobs = [on_one_gpu(1)]
    assert {one.reason for one in tree.look().absences} == {Reason.UNKNOWN}


@given(st.text(), st.text())
def test_whatever_slurm_writes(text: str, other: str) -> None:
    with suppress(Absent):
        allocation.slurm_places([("a", text), (other, text)], "a")
    with suppress(Absent):
        assert allocation.slurm_order(f"Name=gpu File={text}", "a", [1, 0])


@pytest.mark.parametrize(("gres", "places"), CASES["shares"])
def test_shards_and_mps_are_parts_of_gpus(gres: str, places: list[int]) -> None:
    assert allocation.slurm_places([("rack[0-1]node[0-2]", gres)], "rack1node2") == places


@pytest.mark.parametrize(("nodes", "gres", "named"), CASES["odd"])
def test_unreadable_resources_are_named(nodes: str, gres: str, named: str) -> None:
    with pytest.raises(Absent) as raised:
        allocation.slurm_places([(nodes, gres)], "a")
    assert (raised.value.reason, named in str(raised.value)) == (Reason.UNKNOWN, True)


T = TypeVar("T")
SECONDS = 46
SURPRISES = (
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RecursionError("too deep"),
    AttributeError("'int' object has no attribute 'split'"),
    MemoryError(),
    AssertionError("of a library"),
)


def ticks(tree: AllocationTree) -> list[Reading]:
    """Readings of so many seconds."""
    read, found = tree._given, list[Reading]()
    for _ in range(SECONDS):
        if is_due(read, tree.clock.monotonic()):
            found.append(perform(read, tree.clock, ReadCosts())[0])
        tree.clock.advance(1)
    return found


@pytest.mark.parametrize("asked", ["slurm", "kubelet"])
@pytest.mark.parametrize("error", SURPRISES, ids=lambda error: type(error).__name__)
def test_a_surprise_costs_its_question_alone(tmp_path: Path, asked: str, error: Exception) -> None:
    """Its values expire, its source is down with the text, and the interval holds."""
    tree = AllocationTree(tmp_path, slurm=True)
    tree.write("/etc/slurm/gres.conf", GRES)
    tree.write("/var/lib/kubelet/pod-resources/kubelet.sock", "")
    tree.answers.jobs = [SHOWN]
    assert tree.allocated() == {"0": 0, "1": 1, "2": 1}

    def breaks(_: str) -> list[SlurmJob]:
        raise error

    setattr(tree.answers, asked, breaks)
    readings = ticks(tree)
    assert len(readings) == SECONDS // 15
    for reading in readings:
        assert reading.failure is not None
        assert type(error).__name__ in str(reading.failure)
        assert {one.reason for one in reading.absences} == {Reason.FAILED}
        known = {labels[0] for _, labels, _ in reading.samples}
        assert known == (set() if asked == "slurm" else {"1", "2"})


def test_an_answer_that_never_comes_expires_what_was_known(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path, slurm=True)
    tree.answers.jobs = [SHOWN]
    tree.look()

    def hangs(_: str, __: Callable[[], T], /) -> Future[T]:
        return Future()

    (read,) = [tree._given]
    read.run.__self__.spawn = hangs  # type: ignore[attr-defined]
    assert tree.allocations.given.jobs
    tree.clock.advance(15)
    ticks(tree)
    assert SECONDS > EXPIRED
    assert tree.allocations.given.jobs == ()
    assert {one.reason for one in tree.look().absences} == {Reason.STALLED}
