"""What is made of one state of the files of the host: pressure, mounts, the Fabric
Manager."""

import errno
import tomllib
from pathlib import Path

import pytest

from agent.model import Reason
from agent.sources import chassis, disk, host, network
from tests.support.fake_host import HostBench, reasons, shortly, values

CASES = tomllib.loads(Path(__file__).with_name("host_files.toml").read_text(encoding="utf-8"))
SOURCES = {"chassis": chassis, "disk": disk, "host": host, "network": network}
REMOTE = "mounts of the network by kind"
STALL = host.PRESSURE.name


@pytest.mark.parametrize("case", CASES)
def test_what_files_hold_is_read_or_absent(bench: HostBench, case: str) -> None:
    expected = CASES[case]
    for path, text in expected.get("files", {}).items():
        bench.write(path, text)
    source, part = expected["read"].split()
    reading = bench.read(SOURCES[source], part)
    assert values(reading) == {tuple(k): value for *k, value in expected.get("values", ())}
    assert reasons(reading.absences) == {tuple(k): why for *k, why in expected.get("absent", ())}


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
    bench.write("/proc/mounts", CASES[REMOTE]["files"]["/proc/mounts"])
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
