"""SMART as udisks2 reports it to everybody over D-Bus: to ask a disk itself takes root.

udisksd asks ATA disks each ten minutes, and NVMe disks when they report an event (since udisks2
2.10). Interfaces: storaged.org/udisks/docs, org.freedesktop.UDisks2.Drive.Ata and .NVMe.Controller.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.model import Absent, Reason

BUS = "org.freedesktop.UDisks2"
ATA, NVME = f"{BUS}.Drive.Ata", f"{BUS}.NVMe.Controller"
PLACE = "/org/freedesktop/UDisks2"
KEPT, OLD = "/run/dgx-telemetry-smart/objects.json", 1800.0
"""File that dgx-telemetry-smart.service writes each ten minutes, and the age (s) at which it is too
old: the message bus admits no dynamic user, as the agent is."""

ASK = ("call", BUS, PLACE, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects")
DAEMONS = (Path("/usr/libexec/udisks2/udisksd"), Path("/usr/lib/udisks2/udisksd"))
"""Paths of udisksd on the supported systems. Without it no one is asked: no process of ours each
ten minutes."""

OPTIONS = ("--json=short", "--auto-start=no", "--timeout=2")
SECONDS = 3.0  # Timeout of busctl, which has a limit of its own
REMEDY = (
    "SMART is for root, and udisks2, which would report it, is not running: install it (it reports "
    "NVMe disks since 2.10), or run smartd"
)

Objects = Mapping[str, Mapping[str, Mapping[str, Any]]]


class SmartReader:
    """Reader of SMART's verdict on each disk; this one, of tapes, knows of none."""

    def failing(self) -> Mapping[str, bool]:
        """SMART's verdict "failing" by the name of the disk, for those where it is known. Raises
        Absent."""
        raise Absent(Reason.MISSING, REMEDY)


class UdisksSmart(SmartReader):
    """udisksd: what a service of ours asked it, else through systemd's busctl. It is not started
    for this."""

    def failing(self) -> Mapping[str, bool]:
        try:
            answer = _kept() or _asked()
        except (OSError, subprocess.SubprocessError) as error:
            raise Absent(Reason.MISSING, REMEDY) from error
        try:
            return failing(json.loads(answer)["data"][0])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            why = f"udisks2: an answer of another form ({error!r})"
            raise Absent(Reason.FAILED, why) from error


def _kept() -> bytes:
    path = Path(KEPT)
    try:
        fresh = time.time() - path.stat().st_mtime < OLD
        return path.read_bytes() if fresh else b""
    except OSError:
        return b""


def _asked() -> bytes:
    program = shutil.which("busctl")
    if program is None or not any(daemon.exists() for daemon in DAEMONS):
        raise FileNotFoundError("busctl or udisksd")
    words = [program, *OPTIONS, *ASK]
    return subprocess.run(words, capture_output=True, timeout=SECONDS, check=True).stdout  # noqa: S603


def failing(objects: Objects) -> dict[str, bool]:
    """Whole disks by name, out of the objects that udisksd manages."""
    found: dict[str, bool] = {}
    for path, interfaces in objects.items():
        block = interfaces.get(f"{BUS}.Block")
        if block and f"{BUS}.Partition" not in interfaces:
            drive = objects.get(block["Drive"]["data"], {})
            if (verdict := _verdict(drive)) is not None:
                found[path.rpartition("/")[2]] = verdict
    return found


def _verdict(drive: Mapping[str, Mapping[str, Any]]) -> bool | None:
    """Of a drive; None before udisksd has read it, and where it cannot. That an NVMe disk is too
    hot the kernel reports."""
    for interface, word in ((ATA, "SmartFailing"), (NVME, "SmartCriticalWarning")):
        shown = drive.get(interface, {})
        if word in shown and shown["SmartUpdated"]["data"]:
            said = shown[word]["data"]
            return bool(set(said) - {"temperature"}) if interface == NVME else bool(said)
    return None
