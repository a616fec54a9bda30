"""The host's disks and NICs on fixture trees, few devices and many; all sources on this machine."""

import errno
import re
from collections.abc import Callable, Mapping
from types import ModuleType

import pytest

from agent.hardware.host import real_host
from agent.model import Reason
from agent.polling.reads import ReadCosts, perform
from agent.sources import chassis, disk, host, infiniband, network
from agent.sources.context import MOST_DEVICES, HostOptions
from tests.support.fake_host import HostBench, reasons, shortly, values
from tests.support.frozen_clock import FrozenClock

SOURCES = (disk, network, infiniband, host)


# ---- disks


def test_disks_are_whole_disks_and_arrays_only(bench: HostBench) -> None:
    bench.disk("nvme0n1", "nvme0n1p1")
    bench.disk("loop0")
    bench.disk("dm-0")
    bench.write("/sys/block/nvme0c0n1/hidden", "1")
    bench.array("md0", "raid0", "1", "nvme0n1")
    seen = ("nvme0n1", "nvme0n1p1", "loop0", "dm-0", "nvme0c0n1", "md0", "sdx")
    bench.psutil.disks = dict.fromkeys(seen, (4096, 512, 1500))
    found = values(bench.read(disk, "counters"))
    assert {series: value for series, value in found.items() if value} == {
        ("dgx_disk_read_bytes_total", "md0"): 4096,
        ("dgx_disk_written_bytes_total", "md0"): 512,
        ("dgx_disk_busy_seconds_total", "md0"): 1.5,
        ("dgx_disk_read_bytes_total", "nvme0n1"): 4096,
        ("dgx_disk_written_bytes_total", "nvme0n1"): 512,
        ("dgx_disk_busy_seconds_total", "nvme0n1"): 1.5,
    }


def test_a_disk_that_arrives_is_met_at_once_and_one_that_goes_is_forgotten(
    bench: HostBench,
) -> None:
    bench.disk("sda")
    bench.psutil.disks = {"sda": (100, 0, 0)}
    idle = values(bench.read(disk, "counters"))
    assert idle["dgx_disk_written_bytes_total", "sda"] == 0
    bench.disk("sdb")
    bench.psutil.disks = {"sdb": (200, 0, 1)}
    assert {s.labels for s in bench.read(disk, "counters").samples} == {("sdb",)}
    bench.psutil.disks = {"sda": (5, 0, 1)}  # another disk under the old name: no doubt about it
    assert values(bench.read(disk, "counters"))["dgx_disk_read_bytes_total", "sda"] == 5


def test_info_names_models_kinds_and_arrays(bench: HostBench) -> None:
    bench.disk("nvme0n1", model="SAMSUNG MZ1LB1T9   ")
    bench.disk("sda", "sda1", "sda2")
    bench.disk("sdb")
    bench.array("md0", "raid1", "2", "sda1", degraded="1")
    bench.array("md1", "raid0", "2", "nvme0n1", "sda2")
    assert {s.labels for s in bench.read(disk, "info").samples} == {
        ("nvme0n1", "SAMSUNG MZ1LB1T9", "disk", "md1"),
        ("sda", "", "disk", "md0,md1"),
        ("sdb", "", "disk", ""),
        ("md0", "raid1", "raid", ""),
        ("md1", "raid0", "raid", ""),
    }


def test_arrays_count_their_members_with_and_without_redundancy(bench: HostBench) -> None:
    for name in ("sda", "sdb", "sdc", "nvme0n1"):
        bench.disk(name, f"{name}p1")
    bench.array("md0", "raid1", "2", "sda", "sdb", degraded="0")
    bench.array("md1", "raid5", "3 (2)", "sda", "sdb", degraded="1")
    bench.array("md2", "raid0", "3", "nvme0n1p1", "sdcp1", "gone")  # its third disk vanished
    assert values(bench.read(disk, "arrays")) == {
        ("dgx_raid_members", "md0", "working"): 2,
        ("dgx_raid_members", "md0", "missing"): 0,
        ("dgx_raid_members", "md1", "working"): 2,
        ("dgx_raid_members", "md1", "missing"): 1,
        ("dgx_raid_members", "md2", "working"): 0,
        ("dgx_raid_members", "md2", "missing"): 1,
    }


@pytest.mark.parametrize("array", ["raid0 sda sdb", "raid1 sdb"])
def test_a_member_that_goes_is_seen_at_the_next_look(array: str, bench: HostBench) -> None:
    """The kernel counts the last member of a mirror as working even after it has gone."""
    level, *members = array.split()
    bench.disk("sda")
    bench.disk("sdb")
    bench.array("md0", level, "2", *members, degraded="1" if level == "raid1" else "")
    before = values(bench.read(disk, "arrays"))["dgx_raid_members", "md0", "working"]
    assert before == len(members)
    (bench.root / "sys/block/sdb/stat").unlink()
    (bench.root / "sys/block/sdb").rmdir()
    after = values(bench.read(disk, "arrays"))
    assert after["dgx_raid_members", "md0", "missing"] == 3 - before
    assert after["dgx_raid_members", "md0", "working"] == 0


@pytest.mark.parametrize(
    ("array", "state", "working"),
    [
        *(("raid1 2 1", "running", 1), ("raid1 2 1", "offline", 0), ("raid1 3 2", "running", 1)),
        *(("raid5 4 1", "running", 3), ("raid5 4 2", "running", 0), ("raid6 4 2", "running", 2)),
        *(("raid6 4 2", "offline", 0), ("raid10 4 2", "running", 2), ("raid10 4 3", "running", 0)),
        *(("raid4 3 2", "running", 0), ("linear 1", "offline", 0), ("raid0 1", "running", 1)),
    ],
)
def test_no_member_works_of_an_array_that_lost_too_many(
    array: str, state: str, working: int, bench: HostBench
) -> None:
    """Its level says how many it survives; a dead disk counts before the array notices it."""
    level, disks, *degraded = array.split()
    bench.disk("sdb")
    bench.array("md0", level, disks, "sdb", degraded="".join(degraded))
    bench.write("/sys/block/md0/md/dev-sdb/state", "in_sync")
    bench.write("/sys/block/sdb/device/state", state)
    assert values(bench.read(disk, "arrays"))["dgx_raid_members", "md0", "working"] == working


@pytest.mark.parametrize(
    ("layout", "offline", "working"),
    [
        *(("258", "sda sdc", 2), ("258", "sda sdb", 0), ("258", "sdd", 3), ("258", "sdc sdd", 0)),
        *(("513", "sda sdb", 2), ("66050", "sda sdb", 2), ("", "sda sdb", 2)),  # other copies
    ],
)
def test_raid_10_without_both_disks_of_a_mirror_does_not_work(
    layout: str, offline: str, working: int, bench: HostBench
) -> None:
    """The kernel marks at most one of them as faulty."""
    disks = ["sda", "sdb", "sdc", "sdd"]
    bench.array("md0", "raid10", "4", *disks, degraded="0")
    bench.write("/sys/block/md0/md/layout", layout)
    for slot, name in enumerate(disks):
        bench.disk(name)
        bench.write(f"/sys/block/md0/md/dev-{name}/state", "in_sync")
        bench.write(f"/sys/block/md0/md/dev-{name}/slot", str(slot))
        state = "offline" if name in offline.split() else "running"
        bench.write(f"/sys/block/{name}/device/state", state)
    assert values(bench.read(disk, "arrays"))["dgx_raid_members", "md0", "working"] == working


@pytest.mark.parametrize("disks", ["0", "", "many"])
def test_an_array_without_a_member_count_costs_only_itself(bench: HostBench, disks: str) -> None:
    bench.disk("sda")
    bench.array("md127", "container", disks, "sda")
    bench.array("md0", "raid0", "1", "sda")
    reading = bench.read(disk, "arrays")
    assert {s.labels[0] for s in reading.samples} == {"md0"}
    assert {(a.labels[0], a.reason) for a in reading.absences} == {("md127", Reason.UNKNOWN)}


def test_a_denied_degraded_file_is_not_a_whole_array(bench: HostBench) -> None:
    bench.disk("sda")
    bench.array("md0", "raid1", "2", "sda", degraded="1")
    bench.tree.errors["/degraded"] = errno.EACCES
    assert {a.reason for a in bench.read(disk, "arrays").absences} == {Reason.DENIED}


def test_the_user_may_ignore_other_disks(bench: HostBench) -> None:
    bench.disk("sda")
    bench.disk("loop0")
    bench.psutil.disks = dict.fromkeys(("sda", "loop0"), (1, 1, 1))
    reading = bench.read(disk, "counters", 1.0, disk.DiskConfig(re.compile("^sd")))
    assert {s.labels for s in reading.samples} == {("loop0",)}


# ---- networks


def test_only_real_nics_are_counted(bench: HostBench) -> None:
    bridges = ("docker0", "br-12", "cni0", "virbr0", "lxcbr0", "kube-ipvs0", "nodelocaldns")
    tunnels = ("lo", "veth1a", "cali1", "flannel.1", "ifb0", "dummy0", "tun0", "tap1", "lxc12")
    bench.psutil.nics = dict.fromkeys([*bridges, *tunnels], (1, 1)) | dict.fromkeys(
        ("eth0", "enp1s0f0", "bond0", "ib0", "lom1", "br0"), (100, 50)
    )
    reading = bench.read(network, "counters")
    assert {s.labels[0] for s in reading.samples} == {
        "eth0", "enp1s0f0", "bond0", "ib0", "lom1", "br0",
    }  # fmt: skip
    assert values(reading)["dgx_network_received_bytes_total", "eth0"] == 100
    assert values(reading)["dgx_network_transmitted_bytes_total", "eth0"] == 50


def test_a_nic_that_is_reset_or_replaced(bench: HostBench) -> None:
    received = ("dgx_network_received_bytes_total", "eth0")
    exported = []
    for raw in (1000, 2000, 10, 20):
        bench.psutil.nics = {"eth0": (raw, 0), "eth1": (raw, 0)}
        exported.append(values(bench.read(network, "counters")).get(received))
    bench.psutil.nics = {"eth1": (30, 0)}
    exported.append(values(bench.read(network, "counters")).get(received))
    bench.psutil.nics = {"eth0": (3, 0)}
    exported.append(values(bench.read(network, "counters")).get(received))
    assert exported == [1000, 2000, None, 20, None, 3]


def test_link_state_falls_back_to_the_carrier(bench: HostBench) -> None:
    states = {"eth0": "up", "eth1": "down", "ib0": "lowerlayerdown", "eth2": "unknown"}
    for nic, state in states.items():
        bench.write(f"/sys/class/net/{nic}/operstate", state)
    bench.write("/sys/class/net/eth2/carrier", "1")
    bench.write("/sys/class/net/eth3/operstate", "unknown")
    bench.write("/sys/class/net/bonding_masters", "bond0")
    reading = bench.read(network, "links")
    assert shortly(reading) == {("eth0",): 1, ("eth1",): 0, ("ib0",): 0, ("eth2",): 1}
    assert reasons(reading.absences) == {("dgx_network_link_up", "eth3"): Reason.MISSING}


def test_speeds_that_drivers_do_not_know_are_absent(bench: HostBench) -> None:
    speeds = {"eth0": "100000", "v0": "-1", "v1": "0", "v2": "4294967295", "v3": "65535", "v4": "x"}
    for nic, speed in (speeds | {"down0": "1000"}).items():
        bench.write(f"/sys/class/net/{nic}/speed", speed)
    bench.write("/sys/class/net/old0/operstate", "up")
    bench.write("/sys/class/net/v0/operstate", "down")
    bench.tree.errors["down0/speed"] = errno.EINVAL
    reading = bench.read(network, "speeds")
    assert shortly(reading) == {("eth0",): 12.5e9}
    absent = {a.labels[0]: a.reason for a in reading.absences}
    assert absent.pop("old0") is Reason.MISSING
    details = {a.labels[0]: a.detail for a in reading.absences}
    assert details["v0"] == "v0 has no link"
    assert details["v1"] == "v1 reports no speed (0 Mbit/s)"
    assert absent == dict.fromkeys(("v0", "v1", "v2", "v3", "v4", "down0"), Reason.UNKNOWN)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (disk, ("counters", "info", "arrays", "signs")),
        (network, ("counters", "links", "speeds")),
        (infiniband, ("counters", "errors", "links")),
    ],
)
def test_a_host_without_devices(
    bench: HostBench, source: ModuleType, parts: tuple[str, ...]
) -> None:
    for part in parts:
        reading = bench.read(source, part)
        assert reading.samples == ()
        assert {a.reason for a in reading.absences} == {Reason.MISSING}


# ---- CPU and pressure


def test_cpu_busy_is_what_is_neither_idle_nor_waiting(bench: HostBench) -> None:
    bench.psutil.times = (100, 1, 10, 1000, 50, 1, 1, 0)
    first = bench.read(host, "busy")
    assert not first.samples
    assert not first.absences
    bench.psutil.times = (101, 1, 11, 1005, 51, 1, 1, 0)
    assert values(bench.read(host, "busy")) == {
        ("dgx_cpu_busy_ratio",): 0.25,
        ("dgx_workload_io_wait_seconds",): 51.0,
    }
    bench.psutil.times = (102, 1, 11, 1005, 50.5, 1, 1, 0)  # iowait is taken back
    assert values(bench.read(host, "busy"))["dgx_cpu_busy_ratio",] == 1.0
    assert {a.reason for a in bench.read(host, "busy").absences} == {Reason.UNKNOWN}


def test_the_first_reading_of_the_cpu_is_pending(bench: HostBench) -> None:
    read = next(iter(host.reads(bench.host, HostOptions())))
    perform(read, bench.clock, ReadCosts())
    assert read.runs == 0
    bench.psutil.times = (1,) * 8
    perform(read, bench.clock, ReadCosts())
    assert read.runs == 1


# ---- all of them


def test_a_large_host_lists_no_folder_from_tick_to_tick(bench: HostBench) -> None:
    names = [f"nvme{n}n1" for n in range(10)]
    for name in names:
        bench.disk(name, f"{name}p1")
    for n in range(8):
        bench.port(f"mlx5_{n}")
    bench.psutil.disks = dict.fromkeys((*names, *(f"{n}p1" for n in names)), (1, 1, 1))
    bench.psutil.nics = {f"eth{n}": (1, 1) for n in range(10)}
    ticking = [r for s in SOURCES for r in s.reads(bench.host, HostOptions())]
    ticking = [read for read in ticking if read.every() == 1.0]
    for tick in range(20):
        bench.clock.advance(1.0)
        if tick == 2:
            bench.tree.asked.clear()
            bench.tree.listed.clear()
        for read in ticking:
            perform(read, bench.clock, ReadCosts())
    assert bench.tree.listed == []
    per_port, pressures = 3, 3
    assert len(bench.tree.asked) == 18 * (8 * per_port + pressures)


def test_this_machine() -> None:
    """Whatever this host has, every read either yields or says why not, and none fails."""
    clock, read_costs = FrozenClock(), ReadCosts()
    reads = [r for s in SOURCES for r in s.reads(real_host(), HostOptions())]
    for _ in range(2):
        clock.advance(1.0)
        readings = {r.key: perform(r, clock, read_costs)[0] for r in reads}
    for read in reads:
        reading = readings[read.key]
        assert reading.failure is None
        assert reading.samples or reading.absences, read.key
        assert {s.metric for s in reading.samples} <= set(read.metrics)
        assert all(len(s.labels) == len(s.metric.labels) for s in reading.samples)


MANY = 260


def many_disks(bench: HostBench, number: int) -> None:
    bench.disk(f"sd{number}")
    bench.psutil.disks[f"sd{number}"] = (1, 1, 1)


def many_sensors(bench: HostBench, number: int) -> None:
    """Each with an alarm; only the last is raised, and is reported of."""
    chip = f"{chassis.CLASS}/hwmon{number}"
    bench.write(f"{chip}/name", "psu")
    bench.write(f"{chip}/fan1_alarm", str(int(number == MANY - 1)))


def many_file_systems(bench: HostBench, number: int) -> None:
    bench.disk("sda")
    bench.write(f"/sys/fs/ext4/dm-{number}/errors_count", "0")


@pytest.mark.parametrize(
    ("make", "source", "parts"),
    [
        (many_disks, disk, {"counters": 3, "info": 1}),
        (lambda bench, n: bench.psutil.nics.update({f"eth{n}": (1, 1)}), network, {"counters": 2}),
        (
            lambda bench, n: bench.port(f"mlx5_{n}"),
            infiniband,
            {"counters": 3, "errors": len(infiniband.FAULTS), "links": 2},
        ),
        (lambda bench, n: bench.array(f"md{n}", "raid1", "2", degraded="0"), disk, {"arrays": 2}),
        (many_sensors, chassis, {"alarms": 1}),
        (many_file_systems, disk, {"signs": 1}),
    ],
)
def test_of_everything_as_many_are_reported_as_fit(
    bench: HostBench,
    make: Callable[[HostBench, int], None],
    source: ModuleType,
    parts: Mapping[str, int],
) -> None:
    for number in range(MANY):
        make(bench, number)
    for part, each in parts.items():
        reading = bench.read(source, part)
        assert len(reading.samples) == each * MOST_DEVICES
        shown = [absence for absence in reading.absences if absence.reason is Reason.LEFT_OUT]
        assert [absence.detail[:21] for absence in shown] == ["4 of 260 devices are "]
        if part == "alarms":
            assert sum(shortly(reading).values()) == 1


def test_busy_time_that_the_kernel_does_not_count_is_absent(bench: HostBench) -> None:
    """As on RHEL 8 and on DGX OS 5, whose kernels are 4.18 and 5.4."""
    bench.array("md0", "raid0", "1")
    bench.psutil.disks = {"md0": (1 << 30, 0, 0)}
    reading = bench.read(disk, "counters")
    busy = {("dgx_disk_busy_seconds_total", "md0"): Reason.UNSUPPORTED}
    assert reasons(reading.absences) == busy
    assert ("dgx_disk_read_bytes_total", "md0") in values(reading)
