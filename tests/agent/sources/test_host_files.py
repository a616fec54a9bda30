"""What is made of one state of the files of the host: pressure, mounts, the Fabric
Manager."""

import errno
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import pytest

from agent.model import Labels, Reason
from agent.sources import chassis, disk, host, network
from tests.support.fake_host import HostBench, reasons, shortly, values

UNKNOWN, MISSING = Reason.UNKNOWN, Reason.MISSING


class Found(NamedTuple):
    """The files, and what is read of them: values by metric and labels, reasons of others."""

    source: ModuleType
    part: str
    files: dict[str, str]
    values: Mapping[Labels, float] = MappingProxyType({})
    absent: Mapping[Labels, Reason] = MappingProxyType({})


PSI = "some avg10=0.00 avg60=0.03 avg300=0.00 total=2500000\nfull avg10=0.00 total=1000000\n"
STALL = host.PRESSURE.name
MOUNTS, NETWORK = (host.MOUNTS.name,), host.NETWORK_MOUNTS.name
LOCAL = """/dev/md0p2 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
/dev/md1 /raid xfs rw 0 0
none /nfs tmpfs rw 0 0
lxcfs /var/lib/lxcfs fuse.lxcfs rw 0 0
/dev/fuse /run/user/1000/doc fuse rw 0 0"""
REMOTE = rf"""{LOCAL}
storage:/datasets /mnt/data\040sets nfs4 rw,vers=4.2 0 0
storage:/home /home nfs4 rw 0 0
10.0.0.1@o2ib:/scratch /scratch lustre rw 0 0
me@host:/ /mnt/ssh fuse.sshfs rw 0 0
mountpoint-s3 /mnt/s3 fuse ro 0 0"""
REMOTE_MOUNTS = {"nfs4": 2, "lustre": 1, "fuse.sshfs": 1, "fuse": 1}
CASES = {
    "pressure in seconds": Found(
        *(host, "totals"),
        {f"/proc/pressure/{resource}": PSI for resource in host.STALLS},
        {
            (STALL, resource, kind): {"some": 2.5, "full": 1.0}[kind]
            for resource, kinds in host.STALLS.items()
            for kind in kinds
        },
    ),
    "one odd pressure file": Found(
        *(host, "totals"),
        {
            "/proc/pressure/cpu": "some avg10=0.00 total=1000000",
            "/proc/pressure/io": "some avg10=0.00 total=1000000",
            "/proc/pressure/memory": "some nothing",
        },
        {(STALL, "cpu", "some"): 1, (STALL, "io", "some"): 1},
        {(STALL, "io", "full"): UNKNOWN, (STALL, "memory"): UNKNOWN},
    ),
    "a kernel without pressure": Found(host, "totals", {}, {}, {(STALL,): MISSING}),
    "mounts of the network by kind": Found(
        *(host, "mounts"),
        {"/proc/mounts": REMOTE},
        {MOUNTS: 11} | {(NETWORK, kind): number for kind, number in REMOTE_MOUNTS.items()},
    ),
    "no mount of the network": Found(host, "mounts", {"/proc/mounts": LOCAL}, {MOUNTS: 6}),
    "mounts that are hidden": Found(host, "mounts", {}, {}, {MOUNTS: MISSING, (NETWORK,): MISSING}),
    "the mounts of the host where the agent sees fewer": Found(
        *(host, "mounts"),
        {"/proc/1/mounts": f"{LOCAL}\nnone /a tmpfs rw 0 0", "/proc/mounts": LOCAL},
        {MOUNTS: 7},
    ),
    "an array that does not run misses a member": Found(
        *(disk, "arrays"),
        {"/sys/block/md7/md/array_state": "inactive", "/sys/block/md7/md/raid_disks": "0"},
        {(disk.MEMBERS.name, "md7", "working"): 0, (disk.MEMBERS.name, "md7", "missing"): 1},
    ),
    "a cleared array": Found(
        *(disk, "arrays"),
        {"/sys/block/md7/md/array_state": "clear", "/sys/block/md7/md/raid_disks": "0"},
        {(disk.MEMBERS.name, "md7", "working"): 0, (disk.MEMBERS.name, "md7", "missing"): 1},
    ),
}


def member(array: str, working: int, missing: int) -> dict[Labels, float]:
    return {
        (disk.MEMBERS.name, array, "working"): working,
        (disk.MEMBERS.name, array, "missing"): missing,
    }


MD, EDAC = "/sys/block/md7/md", chassis.EDAC
NIC, FAN = "/sys/class/net/eth0", "/sys/class/hwmon/hwmon0"
CASES |= {
    "a set of disks of the firmware is no array": Found(
        *(disk, "arrays"),
        {f"{MD}/array_state": "inactive", f"{MD}/metadata_version": "external:imsm"}
        | {"/sys/block/md6/md/raid_disks": "2", "/sys/block/md6/md/degraded": "0"}
        | {"/sys/block/md6/md/metadata_version": "external:/md7/0"},
        member("md6", 2, 0),
    ),
    "an array without redundancy that broke": Found(
        *(disk, "arrays"),
        {f"{MD}/array_state": "broken", f"{MD}/raid_disks": "4"},
        member("md7", 0, 1),
    ),
    **{
        f"an array that misses {missing} of 2": Found(
            *(disk, "arrays"),
            {f"{MD}/raid_disks": "2", f"{MD}/degraded": missing},
            absent={(disk.MEMBERS.name, "md7"): Reason.IMPLAUSIBLE},
        )
        for missing in ("99", "-1")
    },
    **{
        f"a NIC of {speed} Mbit/s": Found(
            *(network, "speeds"),
            {f"{NIC}/speed": speed, f"{NIC}/operstate": "up"},
            absent={(network.SPEED.name, "eth0"): Reason.IMPLAUSIBLE},
        )
        for speed in ("-2", "99999999", "2147483647")
    },
    "a NIC of another state": Found(
        *(network, "links"),
        {f"{NIC}/operstate": "odd"},
        absent={(network.LINK_UP.name, "eth0"): UNKNOWN},
    ),
    "alarms that cannot be read": Found(
        *(chassis, "alarms"),
        {f"{FAN}/name": "ibmpowernv", f"{FAN}/fan1_fault": "0"}
        | {f"{FAN}/fan2_fault": "N/A", f"{FAN}/fan3_fault": "4294967295"},
        {(chassis.FAULT.name, "fan1 (ibmpowernv hwmon0)", "fan"): 0},
        {(chassis.FAULT.name, f"fan{n} (ibmpowernv hwmon0)", "fan"): Reason.FAILED for n in (2, 3)},
    ),
    "memory of DIMMs, of ranks, and of no known place": Found(
        *(chassis, "memory"),
        {f"{EDAC}/mc0/mc_name": "i10nm", f"{EDAC}/mc0/ue_noinfo_count": "2"}
        | {f"{EDAC}/mc0/dimm3/dimm_{name}": "7" for name in ("ce_count", "ue_count")}
        | {f"{EDAC}/mc0/dimm3/dimm_label": "CPU0_DIMM_A1", f"{EDAC}/mc0/csrow0/ce_count": "7"}
        | {f"{EDAC}/mc1/rank0/dimm_{name}": "-1" for name in ("ce_count", "ue_count")},
        {
            (chassis.DIMM_ERRORS.name, "CPU0_DIMM_A1 (mc0 dimm3)", "corrected"): 7,
            (chassis.DIMM_ERRORS.name, "CPU0_DIMM_A1 (mc0 dimm3)", "uncorrected"): 7,
            (chassis.DIMM_ERRORS.name, "mc0", "uncorrected"): 2,
        },
        {
            (chassis.DIMM_ERRORS.name, "(mc1 rank0)", kind): Reason.IMPLAUSIBLE
            for kind in ("corrected", "uncorrected")
        },
    ),
    "no driver for the memory": Found(
        *(chassis, "memory"), {}, absent={(chassis.DIMM_ERRORS.name,): Reason.MISSING}
    ),
}
KERNEL, SERVICE = {"2": ("kthreadd", 0)}, {"77": ("nv-fabricmanage", 0)}
OF_USERS = {"77": ("nv-fabricmanage", 1000), "2": ("kthreadd", 1000)}
"""Programs of these names that anybody started, in a pid namespace."""


def processes(seen: dict[str, tuple[str, int]]) -> dict[str, str]:
    files = {f"{host.SWITCHES}/0000:86:00.0/information": "", host.PID_FILE: "77"}
    for pid, (name, uid) in seen.items():
        files[f"/proc/{pid}/comm"] = name
        files[f"/proc/{pid}/status"] = f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
    return files


for number, (seen, runs) in enumerate(
    (
        (KERNEL | SERVICE, 1.0),
        (SERVICE, 1.0),
        (KERNEL, 0.0),
        (OF_USERS | KERNEL, 0.0),
        (OF_USERS, None),  # behind hidepid, or in a pid namespace, it was reported as missing
        ({}, None),
    )
):
    key: Labels = (host.FABRIC_MANAGER.name,)
    known, why = ({key: runs}, {}) if runs is not None else ({}, {key: Reason.DENIED})
    CASES[f"the Fabric Manager {number}"] = Found(host, "state", processes(seen), known, why)


@pytest.mark.parametrize("case", CASES)
def test_what_files_hold_is_read_or_absent(bench: HostBench, case: str) -> None:
    source, part, files, expected, absent = CASES[case]
    for path, text in files.items():
        bench.write(path, text)
    reading = bench.read(source, part)
    assert values(reading) == expected
    assert reasons(reading.absences) == absent


def test_pressure_switched_off_at_boot(bench: HostBench) -> None:
    bench.tree.errors |= {f"/{resource}": errno.EOPNOTSUPP for resource in host.STALLS}
    (absence,) = bench.read(host, "totals").absences
    assert absence.reason is Reason.UNSUPPORTED
    assert "psi=1" in absence.detail


def test_seconds_that_were_never_spent_are_not_counted(bench: HostBench) -> None:
    """A counter that leaps, and stays there, as diskstats have of an old kernel."""
    bench.disk("sda")
    counted = []
    for seconds in (1, 2, 4_294_967, 4_294_968, 4_294_969):
        for resource in host.STALLS:
            total = f"total={seconds * 10**6}"
            bench.write(f"/proc/pressure/{resource}", f"some {total}\nfull {total}")
        bench.psutil.disks = {"sda": (1, 1, seconds * 1000)}
        found = values(bench.read(host, "totals")) | values(bench.read(disk, "counters"))
        counted.append((found.get((STALL, "io", "some")), found.get((disk.BUSY.name, "sda"))))
    assert counted == [(1, 1), (2, 2), (None, None), (3, 3), (4, 4)]


def test_no_mount_is_touched(bench: HostBench) -> None:
    bench.write("/proc/mounts", REMOTE)
    bench.read(host, "mounts")
    assert (bench.tree.asked, bench.tree.listed) == ([*host.MOUNT_TABLES], [])


def test_what_the_kernel_makes_up_is_no_nic(bench: HostBench) -> None:
    """A secondary interface of a container, as of AWS' plugin: its bytes are those of eth0."""
    received = {"eth0": 1000, "eni0a1": 1000, "bond0": 2000}
    for nic in received:
        bench.write(f"/sys/class/net/{nic}/operstate", "up")
        bench.write(f"/sys/class/net/{nic}/speed", "10000")
    bench.psutil.nics = {nic: (count, 0) for nic, count in received.items()}
    assert set(shortly(bench.read(network, "speeds"))) == {(nic,) for nic in received}
    bench.write("/sys/class/net/eth0/device/vendor", "0x15b3")
    assert set(shortly(bench.read(network, "speeds"))) == {("eth0",)}
    counters = bench.read(network, "counters")
    assert {sample.labels for sample in counters.samples} == {("eth0",)}
