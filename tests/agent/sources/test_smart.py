"""SMART without root: what udisks2 reports of disks, and why it says nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent.hardware import smart
from agent.model import Absent, Reason
from agent.sources import disk
from tests.support.machines import simulated

DRIVES = f"{smart.PLACE}/drives"
BLOCKS = f"{smart.PLACE}/block_devices"


def values(**properties: object) -> dict[str, Any]:
    return {name: {"type": "v", "data": value} for name, value in properties.items()}


def drive(interface: str, **properties: object) -> dict[str, Any]:
    return {f"{smart.BUS}.Drive": {}, interface: values(**properties)}


def block(name: str, *more: str) -> dict[str, Any]:
    shown = {f"{smart.BUS}.Block": values(Drive=f"{DRIVES}/{name}")}
    return shown | {f"{smart.BUS}.{interface}": {} for interface in more}


OBJECTS = {
    f"{smart.PLACE}/Manager": {f"{smart.BUS}.Manager": values(Version="2.10.1")},
    f"{DRIVES}/sound": drive(smart.ATA, SmartUpdated=1763800000, SmartFailing=False),
    f"{DRIVES}/dying": drive(smart.ATA, SmartUpdated=1763800000, SmartFailing=True),
    f"{DRIVES}/unread": drive(smart.ATA, SmartUpdated=0, SmartFailing=False),
    f"{DRIVES}/warm": drive(smart.NVME, SmartUpdated=5, SmartCriticalWarning=["temperature"]),
    f"{DRIVES}/worn": drive(smart.NVME, SmartUpdated=5, SmartCriticalWarning=["spare"]),
    f"{DRIVES}/old": drive(f"{smart.BUS}.Drive"),
    f"{BLOCKS}/sda": block("sound", "PartitionTable"),
    f"{BLOCKS}/sda1": block("sound", "Partition"),
    f"{BLOCKS}/sdb": block("dying"),
    f"{BLOCKS}/sdc": block("unread"),
    f"{BLOCKS}/nvme0n1": block("warm"),
    f"{BLOCKS}/nvme1n1": block("worn"),
    f"{BLOCKS}/nvme2n1": block("old"),
    f"{BLOCKS}/loop0": {f"{smart.BUS}.Block": values(Drive="/")},
}
KNOWN = {"sda": False, "sdb": True, "nvme0n1": False, "nvme1n1": True}


def busctl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "busctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(smart, "DAEMONS", (program,))


def test_every_disk_that_udisks_has_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = tmp_path / "answer"
    answer.write_text(json.dumps({"type": "a{oa{sa{sv}}}", "data": [OBJECTS]}))
    busctl(tmp_path, monkeypatch, f"cat {answer}")
    assert smart.UdisksSmart().failing() == KNOWN


def test_what_the_service_has_asked_comes_first_while_it_is_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busctl(tmp_path, monkeypatch, "exit 1")
    kept = tmp_path / "objects.json"
    monkeypatch.setattr(smart, "KEPT", str(kept))
    kept.write_text(json.dumps({"data": [OBJECTS]}))
    assert smart.UdisksSmart().failing() == KNOWN
    os.utime(kept, (0, 0))
    with pytest.raises(Absent):
        smart.UdisksSmart().failing()


def test_no_process_is_started_without_udisks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busctl(tmp_path, monkeypatch, f"touch {tmp_path}/asked")
    monkeypatch.setattr(smart, "DAEMONS", (tmp_path / "udisksd",))
    with pytest.raises(Absent, match="udisks2"):
        smart.UdisksSmart().failing()
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Call failed: The name is not activatable' >&2; exit 1", Reason.MISSING),
        ("echo '{}'", Reason.FAILED),
        ("echo half; exit 0", Reason.FAILED),
        ("exec sleep 60", Reason.MISSING),
    ],
)
def test_without_an_answer_it_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: Reason
) -> None:
    monkeypatch.setattr(smart, "SECONDS", 0.5)
    busctl(tmp_path, monkeypatch, script)
    with pytest.raises(Absent) as caught:
        smart.UdisksSmart().failing()
    assert caught.value.reason is reason


def test_a_disk_that_smart_calls_failing_is_a_fault() -> None:
    bench = simulated("gtx-1080:disk-smart").run(2)
    shown = bench.samples.where(disk.FAULT, kind="smart")
    name = bench.machine.system.disks[0].name
    assert {which for (which, _), failing in shown.items() if failing} == {name}
    assert len(shown) == len(bench.machine.system.disks)


def test_of_a_disk_that_udisks_does_not_know_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = simulated("gtx-1080:idle")
    monkeypatch.setattr(bench.machine.host.smart, "failing", dict)
    bench.run(1)
    absent = bench.samples.absence(disk.FAULT, bench.machine.system.disks[0].name, "smart")
    assert absent
    assert absent.detail == str(disk.SILENT)
