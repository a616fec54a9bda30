"""How many cores the processes of a GPU may use, on made-up processes."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.hardware.files import RealFiles
from agent.jobs import cores
from agent.sources import workload as work
from tests.support.process_tree import CGROUP, ProcessTree, of


def test_no_more_cores_than_the_quota_of_any_cgroup_above(tree: ProcessTree) -> None:
    tree.write(f"/sys/fs/cgroup{CGROUP}/cpu.max", "max 100000\n")
    tree.write("/sys/fs/cgroup/system.slice/cpu.max", "250000 100000\n")
    tree.occupy(100)
    tree.read()
    assert of(tree.read())[work.ALLOWED_CORES] == 2.5


def test_cores_are_those_of_launcher_and_loaders_together(tree: ProcessTree) -> None:
    for pid, allowed in {100: "0-1", 101: "4", 102: "1,6-7"}.items():
        tree.write(f"/proc/{pid}/status", f"Uid:\t1000\nCpus_allowed_list:\t{allowed}\n")
    tree.end(103)
    tree.occupy(100)
    tree.read()
    assert of(tree.read())[work.ALLOWED_CORES] == 5


def test_cores_are_asked_again_after_a_minute(tree: ProcessTree) -> None:
    tree.occupy(100)
    asked = 0
    for _ in range(62):
        tree.read()
        asked += "/proc/101/status" in tree.tree.asked
    assert asked == 2


def test_unknown_affinity_leaves_the_cores_unknown(tree: ProcessTree) -> None:
    for pid in (100, 101, 102, 103):
        tree.write(f"/proc/{pid}/status", "Name:\tx\n")
    tree.occupy(100)
    tree.read()
    assert work.ALLOWED_CORES not in of(tree.read())


QUOTAS = {
    "0::/a/b\n": 1.5,
    "0::/a\n": 3.0,
    "0::/\n": None,
    "0::/../elsewhere\n": None,
    "5:cpu,cpuacct:/c\n4:memory:/a/b\n": 2.0,
    "5:cpu,cpuacct:/free\n": None,
    "": None,
    "nonsense": None,
}


@pytest.mark.parametrize("cgroup", QUOTAS)
def test_quotas(cgroup: str, tmp_path: Path) -> None:
    tree = ProcessTree(tmp_path)
    tree.write("/sys/fs/cgroup/a/cpu.max", "300000 100000\n")
    tree.write("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n")
    for name, most in {"c": 200000, "free": -1}.items():
        tree.write(f"/sys/fs/cgroup/cpu,cpuacct/{name}/cpu.cfs_quota_us", f"{most}\n")
        tree.write(f"/sys/fs/cgroup/cpu,cpuacct/{name}/cpu.cfs_period_us", "100000\n")
    assert cores.quota(RealFiles(tmp_path), cgroup) == QUOTAS[cgroup]


@settings(deadline=None)
@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_of_cpus_is_read_as_it_is_written(numbers: set[int]) -> None:
    text = ",".join(map(str, sorted(numbers)))
    assert cores.cpus(text) == sum(1 << n for n in numbers)


def test_ranges_of_cpus() -> None:
    assert cores.cpus("0-3,8,10-11").bit_count() == 7
    assert cores.cpus("") == cores.cpus("x-3") == cores.cpus("1-x") == 0
