"""File systems of the network among the mounts."""

from pathlib import Path

import pytest

from agent.model import Reason
from agent.sources import host
from tests.support.fake_host import HostBench, values

LOCAL = """/dev/md0p2 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
/dev/md1 /raid xfs rw 0 0
none /nfs tmpfs rw 0 0
lxcfs /var/lib/lxcfs fuse.lxcfs rw 0 0
/dev/fuse /run/user/1000/doc fuse rw 0 0"""
REMOTE = r"""storage:/datasets /mnt/data\040sets nfs4 rw,vers=4.2 0 0
storage:/home /home nfs4 rw 0 0
10.0.0.1@o2ib:/scratch /scratch lustre rw 0 0
me@host:/ /mnt/ssh fuse.sshfs rw 0 0
mountpoint-s3 /mnt/s3 fuse ro 0 0"""


@pytest.fixture
def bench(tmp_path: Path) -> HostBench:
    return HostBench(tmp_path)


def test_mounts_of_the_network_by_kind(bench: HostBench) -> None:
    bench.write("/proc/mounts", f"{LOCAL}\n{REMOTE}")
    assert values(bench.read(host, "mounts")) == {
        ("dgx_workload_mounts",): 11,
        ("dgx_workload_network_mounts", "nfs4"): 2,
        ("dgx_workload_network_mounts", "lustre"): 1,
        ("dgx_workload_network_mounts", "fuse.sshfs"): 1,
        ("dgx_workload_network_mounts", "fuse"): 1,
    }


def test_none_mounted_is_known(bench: HostBench) -> None:
    bench.write("/proc/mounts", LOCAL)
    assert values(bench.read(host, "mounts")) == {("dgx_workload_mounts",): 6}


def test_unknown_mounts_are_absent(bench: HostBench) -> None:
    reading = bench.read(host, "mounts")
    assert reading.samples == ()
    assert {(a.metric, a.reason) for a in reading.absences} == {
        (host.MOUNTS, Reason.MISSING),
        (host.NETWORK_MOUNTS, Reason.MISSING),
    }


def test_no_mount_is_touched(bench: HostBench) -> None:
    bench.write("/proc/mounts", f"{LOCAL}\n{REMOTE}")
    bench.read(host, "mounts")
    assert (bench.tree.asked, bench.tree.listed) == ([*host.MOUNT_TABLES], [])


def test_the_mounts_of_the_host_count_where_the_agent_sees_fewer(bench: HostBench) -> None:
    bench.write("/proc/1/mounts", f"{LOCAL}\n{REMOTE}")
    bench.write("/proc/mounts", LOCAL)
    assert values(bench.read(host, "mounts"))["dgx_workload_mounts",] == 11
    assert bench.tree.asked == ["/proc/1/mounts"]
