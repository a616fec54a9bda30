"""What is made of one state of the files of the host: pressure, mounts, the Fabric Manager, ports
of InfiniBand, disks by SMART, and devices with odd names."""

import errno
import tomllib
from pathlib import Path

import pytest

from agent.hardware.files import RealFiles
from agent.hardware.host import Host
from agent.model import Reason
from agent.polling.reads import ReadCosts, ReadOutput, perform
from agent.replay.masks import untaped
from agent.sources import chassis, disk, host, infiniband, network
from agent.sources.context import HostOptions
from tests.support.fake_host import FakePsutil, HostBench, reasons, shortly, values
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import simulated

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


def folder(root: Path, path: str, **files: str) -> None:
    (root / path).mkdir(parents=True)
    for name, text in files.items():
        (root / path / name).write_text(text)


def test_a_virtual_function_is_no_nic_and_no_port_of_the_host(tmp_path: Path) -> None:
    """It goes with its pod: its port was reported as down."""
    for name, virtual in (("eth0", False), ("eth0v3", True)):
        folder(tmp_path, f"sys/class/net/{name}/device" + "/physfn" * virtual)
    for name, virtual in (("mlx5_0", False), ("mlx5_9", True)):
        folder(tmp_path, f"sys/class/infiniband/{name}/ports/1", state="1: DOWN")
        folder(tmp_path, f"sys/class/infiniband/{name}/device" + "/physfn" * virtual)
    files = RealFiles(tmp_path)
    assert network.nics(files, ["eth0", "eth0v3"], HostOptions()) == ["eth0"]
    ports = infiniband.InfinibandPorts(files)
    assert [port for port, _ in ports._at(ReadOutput(0.0), infiniband.PORT_UP)] == [("mlx5_0", "1")]


@pytest.mark.parametrize(
    ("name", "size", "counted"),
    [("nvme0n1", "7814037168", "nvme0n1"), ("cciss!c0d0", "585871964", "cciss/c0d0"),
     ("sr0", "0", ""), ("nbd0", "0", "")],
)  # fmt: skip
def test_disks_are_what_can_hold_data(tmp_path: Path, name: str, size: str, counted: str) -> None:
    folder(tmp_path, f"sys/block/{name}", size=size)
    host = Host(RealFiles(tmp_path), FakePsutil({counted or name: (512, 0, 8)}))
    read = next(iter(disk.reads(host, HostOptions())))
    reading, _ = perform(read, FrozenClock(), ReadCosts())
    assert {labels for metric, labels, _ in reading.samples} == ({(name,)} if counted else set())


KNOWN = {"sda": False, "sdb": True, "nvme0n1": False, "nvme1n1": True}


def test_every_disk_that_udisks_has_read_is_reported(bench: HostBench) -> None:
    for name in (*KNOWN, "sdc"):
        bench.disk(name)
    bench.write(disk.SMART, Path(__file__).with_name("udisks.json").read_text())
    reading = bench.read(disk, "smart")
    assert {name: failing for (_, name, _), failing in values(reading).items()} == KNOWN
    unread = {(disk.FAULT.name, "sdc", "smart"): Reason.UNSUPPORTED}
    assert reasons(reading.absences) == unread


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", Reason.MISSING), ("{}", Reason.FAILED), ("half", Reason.FAILED), ("[1]", Reason.FAILED)],
)
def test_without_an_answer_it_is_absent(bench: HostBench, text: str, reason: Reason) -> None:
    bench.disk("sda")
    bench.write(disk.SMART, text)
    assert set(reasons(bench.read(disk, "smart").absences).values()) == {reason}


def test_a_disk_that_smart_calls_failing_is_a_fault() -> None:
    bench = simulated("gtx-1080:disk-smart").run(2)
    shown = bench.samples.where(disk.FAULT, kind="smart")
    name = bench.machine.devices.disks[0].name
    assert {which for (which, _), failing in shown.items() if failing} == {name}
    assert len(shown) == len(bench.machine.devices.disks)


def test_serial_numbers_of_disks_are_on_no_tape() -> None:
    assert untaped(disk.SMART)


def test_a_healthy_port(bench: HostBench) -> None:
    bench.port("mlx5_0")
    assert values(bench.read(infiniband, "counters")) == {
        ("dgx_infiniband_received_bytes_total", "mlx5_0", "1"): 4000,
        ("dgx_infiniband_transmitted_bytes_total", "mlx5_0", "1"): 2000,
        ("dgx_infiniband_wait_ticks_total", "mlx5_0", "1"): 7,
    }
    assert values(bench.read(infiniband, "links")) == {
        ("dgx_infiniband_link_up", "mlx5_0", "1"): 1,
        ("dgx_infiniband_rate_bytes_per_second", "mlx5_0", "1"): 12.5e9,
    }
    errors = bench.read(infiniband, "errors")
    assert {s.labels[2] for s in errors.samples} == {
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "rcv_errors",
        "rcv_remote_physical_errors",
        "xmit_discards",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
    }
    assert not errors.absences


def test_odd_ports_never_cost_the_others(bench: HostBench) -> None:
    bench.port("mlx5_0")
    bench.port("mlx5_1")  # EINVAL on one counter
    bench.tree.errors["mlx5_1/ports/1/counters/port_rcv_data"] = errno.EINVAL
    bench.port("mlx5_2", counters__port_xmit_wait="N/A (no PMA)", link_layer="Ethernet")
    bench.write(f"{infiniband.CLASS}/irdma0/ports/1/hw_counters/x", "1")  # no folder of counters
    bench.write(f"{infiniband.CLASS}/switch0/node_type", "2: switch")  # no ports
    bench.port("mlx5_3", state="1: DOWN", phys_state="3: Disabled", rate="10 Gb/sec (4X SDR)")
    bench.port("mlx5_4", counters__port_xmit_data="4294967295")  # a 32-bit counter that is full
    bench.port("mlx5_5", counters__port_xmit_data="18446744073709551615")
    reading = bench.read(infiniband, "counters")
    received, sent, wait = (m.name for m in (c.metric for c in infiniband.TRAFFIC))
    assert reasons(reading.absences) == {
        (received, "mlx5_1", "1"): Reason.FAILED,
        (wait, "mlx5_2", "1"): Reason.UNKNOWN,
        (received, "irdma0", "1"): Reason.MISSING,
        (sent, "irdma0", "1"): Reason.MISSING,
        (wait, "irdma0", "1"): Reason.MISSING,
        (sent, "mlx5_4", "1"): Reason.UNKNOWN,
        (sent, "mlx5_5", "1"): Reason.UNKNOWN,
    }
    assert len(reading.samples) == 7 * 3 - 7


def test_a_refused_counter_is_not_asked_again_before_the_next_listing(bench: HostBench) -> None:
    bench.port("mlx5_0")
    bench.tree.errors["port_xmit_wait"] = errno.EINVAL
    for _ in range(59):
        bench.read(infiniband, "counters")
    wait = [path for path in bench.tree.asked if path.endswith("port_xmit_wait")]
    assert len(wait) == 1
    bench.tree.errors.clear()
    for _ in range(2):
        reading = bench.read(infiniband, "counters")
    assert ("dgx_infiniband_wait_ticks_total", "mlx5_0", "1") in values(reading)


def test_a_good_counter_that_breaks_for_good_comes_to_rest(bench: HostBench) -> None:
    bench.port("mlx5_0")
    bench.read(infiniband, "counters")
    bench.tree.errors["port_xmit_wait"] = errno.EINVAL
    bench.tree.asked.clear()
    for _ in range(50):
        bench.read(infiniband, "counters")
    assert sum(path.endswith("port_xmit_wait") for path in bench.tree.asked) == 2


def test_one_failure_of_a_good_counter_costs_one_tick(bench: HostBench) -> None:
    bench.port("mlx5_0")
    exported = []
    for error in (None, errno.EIO, None, None):
        bench.tree.errors = {"port_xmit_wait": error} if error else {}
        reading = values(bench.read(infiniband, "counters"))
        exported.append(reading.get(("dgx_infiniband_wait_ticks_total", "mlx5_0", "1")))
    assert exported == [7, None, 7, 7]


@pytest.mark.parametrize(
    ("state", "physical", "up"),
    [
        ("4: ACTIVE", "5: LinkUp", 1),
        ("4: ACTIVE", "6: LinkErrorRecovery", 0),
        ("1: DOWN", "2: Polling", 0),
        ("2: INIT", "5: LinkUp", 0),
    ],
)
def test_a_port_is_up_when_it_is_active_and_linked(
    bench: HostBench, state: str, physical: str, up: int
) -> None:
    bench.port("mlx5_0", state=state, phys_state=physical)
    found = bench.read(infiniband, "links").samples
    assert [one.value for one in found if one.metric is infiniband.PORT_UP] == [up]


def test_rates_are_known_of_active_ports_only(bench: HostBench) -> None:
    bench.port("mlx5_0", rate="400 Gb/sec (4X NDR)")
    bench.port("mlx5_1", rate="2.5 Gb/sec (1X)")
    bench.port("mlx5_2", state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    bench.port("mlx5_3", rate="fast")
    bench.port("mlx5_4", rate=None)
    bench.port("mlx5_5", state="active")
    bench.port("mlx5_6", state="255: ?")
    bench.port("mlx5_7", rate="0 Gb/sec")
    bench.port("mlx5_8", rate="99999 Gb/sec")
    reading = bench.read(infiniband, "links")
    rates = {s.labels[0]: s.value for s in reading.samples if s.metric is infiniband.RATE}
    assert rates == {"mlx5_0": 50e9, "mlx5_1": 0.3125e9}
    absent = {a.labels[0]: a.reason for a in reading.absences if a.metric is infiniband.RATE}
    assert absent == {
        "mlx5_2": Reason.UNKNOWN,
        "mlx5_3": Reason.UNKNOWN,
        "mlx5_4": Reason.MISSING,
        "mlx5_5": Reason.UNKNOWN,
        "mlx5_6": Reason.UNKNOWN,
        "mlx5_7": Reason.IMPLAUSIBLE,
        "mlx5_8": Reason.IMPLAUSIBLE,
    }


def test_ports_come_and_go_with_the_next_listing(bench: HostBench) -> None:
    bench.read(infiniband, "links")
    asked = len(bench.tree.listed)
    bench.port("mlx5_0")
    assert not bench.read(infiniband, "links").samples
    assert len(bench.tree.listed) == asked
    assert bench.read(infiniband, "links", after=60).samples
