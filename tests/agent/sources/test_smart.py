"""SMART without root: what udisks2 reports of disks, and why it says nothing."""

from pathlib import Path

import pytest

from agent.model import Reason
from agent.replay.masks import untaped
from agent.sources import disk
from tests.support.fake_host import HostBench, reasons, values
from tests.support.machines import simulated

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
