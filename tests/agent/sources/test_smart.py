"""SMART without root: what udisks2 reports of disks, and why it says nothing."""

import json
from typing import Any

import pytest

from agent.model import Reason
from agent.replay.masks import untaped
from agent.sources import disk
from tests.support.fake_host import HostBench, reasons, values
from tests.support.machines import simulated

PLACE = "/org/freedesktop/UDisks2"
ATA, NVME = f"{disk.UDISKS}.Drive.Ata", f"{disk.UDISKS}.NVMe.Controller"
DRIVES = f"{PLACE}/drives"
BLOCKS = f"{PLACE}/block_devices"


def shown(**properties: object) -> dict[str, Any]:
    return {name: {"type": "v", "data": value} for name, value in properties.items()}


def drive(interface: str, **properties: object) -> dict[str, Any]:
    return {f"{disk.UDISKS}.Drive": {}, interface: shown(**properties)}


def block(name: str, *more: str) -> dict[str, Any]:
    own = {f"{disk.UDISKS}.Block": shown(Drive=f"{DRIVES}/{name}")}
    return own | {f"{disk.UDISKS}.{interface}": {} for interface in more}


OBJECTS = {
    f"{PLACE}/Manager": {f"{disk.UDISKS}.Manager": shown(Version="2.10.1")},
    f"{DRIVES}/sound": drive(ATA, SmartUpdated=1763800000, SmartFailing=False),
    f"{DRIVES}/dying": drive(ATA, SmartUpdated=1763800000, SmartFailing=True),
    f"{DRIVES}/unread": drive(ATA, SmartUpdated=0, SmartFailing=False),
    f"{DRIVES}/warm": drive(NVME, SmartUpdated=5, SmartCriticalWarning=["temperature"]),
    f"{DRIVES}/worn": drive(NVME, SmartUpdated=5, SmartCriticalWarning=["spare"]),
    f"{DRIVES}/old": drive(f"{disk.UDISKS}.Drive"),
    f"{BLOCKS}/sda": block("sound", "PartitionTable"),
    f"{BLOCKS}/sda1": block("sound", "Partition"),
    f"{BLOCKS}/sdb": block("dying"),
    f"{BLOCKS}/sdc": block("unread"),
    f"{BLOCKS}/nvme0n1": block("warm"),
    f"{BLOCKS}/nvme1n1": block("worn"),
    f"{BLOCKS}/nvme2n1": block("old"),
    f"{BLOCKS}/loop0": {f"{disk.UDISKS}.Block": shown(Drive="/")},
}
KNOWN = {"sda": False, "sdb": True, "nvme0n1": False, "nvme1n1": True}


def test_every_disk_that_udisks_has_read_is_reported(bench: HostBench) -> None:
    for name in (*KNOWN, "sdc"):
        bench.disk(name)
    bench.write(disk.SMART, json.dumps({"type": "a{oa{sa{sv}}}", "data": [OBJECTS]}))
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
    name = bench.machine.system.disks[0].name
    assert {which for (which, _), failing in shown.items() if failing} == {name}
    assert len(shown) == len(bench.machine.system.disks)


def test_serial_numbers_of_disks_are_on_no_tape() -> None:
    assert untaped(disk.SMART)
