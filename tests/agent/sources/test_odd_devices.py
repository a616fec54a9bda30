"""Devices that are none of this host's own, or have odd names."""

from pathlib import Path

import pytest

from agent.hardware.files import RealFiles
from agent.hardware.host import Host
from agent.polling.reads import ReadCosts, ReadOutput, perform
from agent.sources import disk, infiniband, network
from agent.sources.context import HostOptions
from tests.support.fake_host import FakePsutil
from tests.support.frozen_clock import FrozenClock


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
