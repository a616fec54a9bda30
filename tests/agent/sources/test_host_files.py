"""What is made of one state of the files of the host: memory, pressure, mounts, the Fabric Manager,
sensors of the chassis (those of the box are read, all others left alone)."""

import errno
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import pytest

from agent.faults.findings import findings
from agent.model import Labels, Reason, Snapshot
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


TOTAL, AVAILABLE = (host.MEMORY_TOTAL.name,), (host.MEMORY_AVAILABLE.name,)
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
POWER, TEMPERATURE = chassis.POWER.name, chassis.TEMPERATURE.name
NO_AIR: dict[Labels, Reason] = {(TEMPERATURE,): MISSING}
NO_POWER: dict[Labels, Reason] = {(POWER,): MISSING}


def chips(*them: dict[str, str]) -> dict[str, str]:
    """Files of hwmon chips, by number and name: `{"power_meter": "9", "power1_input": "1"}`."""
    found: dict[str, str] = {}
    for chip in them:
        (name, number), *files = chip.items()
        folder = f"{chassis.CLASS}/hwmon{number}"
        found |= {f"{folder}/name": name, **{f"{folder}/{file}": text for file, text in files}}
    return found


def sensors(
    *them: dict[str, str],
    values: dict[Labels, float],
    absent: dict[Labels, Reason] = NO_AIR,
) -> Found:
    return Found(chassis, "sensors", chips(*them), values, absent)


METER = (POWER, "power_meter: power1")
CASES = {
    "memory in kB": Found(
        *(host, "now"),
        {"/proc/meminfo": "MemTotal:  2113540 kB\nMemFree:  3 kB\nMemAvailable:   1024 kB"},
        {TOTAL: 2113540 << 10, AVAILABLE: 1 << 20},
    ),
    "memory of a kernel before 3.14": Found(
        *(host, "now"), {"/proc/meminfo": "MemTotal: 9 kB"}, {TOTAL: 9 << 10}, {AVAILABLE: UNKNOWN}
    ),
    "memory that is no number": Found(
        *(host, "now"),
        {"/proc/meminfo": "MemTotal: much\nMemAvailable: 7"},
        {},
        {TOTAL: UNKNOWN, AVAILABLE: UNKNOWN},
    ),
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
    "a power meter and the air, in base units": sensors(
        {"power_meter": "0", "power1_average": "2345000000", "power1_average_max": "9"},
        {"board": "1", "temp1_input": "21500", "temp1_label": "Inlet Temp", "temp2_input": "4"},
        values={METER: 2345.0, (TEMPERATURE, "board: Inlet Temp"): 21.5},
        absent={},
    ),
    "the meter of a POWER machine, known by its label": sensors(
        {"ibmpowernv": "3", "power1_input": "1800000000", "power1_label": "System"},
        {"ibmpowernv": "4", "power1_input": "90000000", "power1_label": "CPU 0"},
        values={(POWER, "ibmpowernv: System"): 1800.0},
    ),
    "CPUs, disks and cards are no chassis": sensors(
        {"coretemp": "0", "temp1_input": "60000", "temp1_label": "Package id 0"},
        {"nvme": "1", "temp1_input": "45000", "temp1_label": "Composite"},
        {"nvme": "2", "temp1_input": "45000", "temp1_label": "Ambient"},
        {"pmbus": "3", "power1_input": "400000000", "power1_label": "pout1"},
        values={},
        absent=NO_AIR | NO_POWER,
    ),
    "a meter that gives a mean and a reading": sensors(
        {"power_meter": "0", "power1_average": "1000000", "power1_input": "9000000"},
        values={METER: 1.0},
    ),
    "meters of one name, numbered in the order of the kernel": sensors(
        {"power_meter": "10", "power1_average": "2000000"},
        {"power_meter": "9", "power1_average": "1000000"},
        {"power_meter": "8", "power1_average": "3000000", "power1_label": "power1 2"},
        values={(POWER, "power_meter: power1 2"): 3, METER: 1, (POWER, "power_meter: power1 3"): 2},
    ),
    **{
        f"a meter at {text}": sensors(
            {"power_meter": "0", "power1_average": text},
            values={},
            absent=NO_AIR | {METER: UNKNOWN},
        )
        for text in ("0", "-1", "much")
    },
    "a sensor that is not connected": sensors(
        {"board": "0", "temp1_label": "Inlet", "temp1_input": "-128000"},
        values={},
        absent=NO_POWER | {(TEMPERATURE, "board: Inlet"): UNKNOWN},
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


def test_no_mount_is_touched(bench: HostBench) -> None:
    bench.write("/proc/mounts", REMOTE)
    bench.read(host, "mounts")
    assert (bench.tree.asked, bench.tree.listed) == ([*host.MOUNT_TABLES], [])


def test_a_meter_that_arrives_is_read_alone_and_one_for_root_is_no_fault(bench: HostBench) -> None:
    assert bench.read(chassis, "sensors").samples == ()
    for path, text in chips({"power_meter": "0", "power1_average": "1000000"}).items():
        bench.write(path, text)
    assert values(bench.read(chassis, "sensors")) == {METER: 1.0}
    bench.tree.asked.clear()
    bench.tree.errors["power1_average"] = errno.EACCES
    reading = bench.read(chassis, "sensors")
    assert bench.tree.asked == [f"{chassis.CLASS}/hwmon0/power1_average"]
    assert reasons(reading.absences)[METER] is Reason.DENIED
    assert list(findings(Snapshot(1, reading.at, 0.0, {reading.key: reading}))) == []


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
