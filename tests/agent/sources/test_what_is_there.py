"""Devices that the kernel lists and that are none, or do not run."""

from pathlib import Path

import pytest

from agent.sources import disk, network
from tests.support.fake_host import HostBench, shortly


@pytest.fixture
def bench(tmp_path: Path) -> HostBench:
    return HostBench(tmp_path)


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


@pytest.mark.parametrize("state", ["inactive", "clear"])
def test_an_array_that_does_not_run_misses_a_member(bench: HostBench, state: str) -> None:
    bench.write("/sys/block/md127/md/array_state", state)
    bench.write("/sys/block/md127/md/raid_disks", "0")
    reading = bench.read(disk, "arrays")
    assert shortly(reading) == {("md127", "working"): 0, ("md127", "missing"): 1}
