"""Disks that fail, by what the kernel shows to everybody, and by SMART where udisks2 reports it."""

import re
from collections.abc import Iterator
from functools import partial

from agent.clock import Clock
from agent.hardware.files import FileTree, names_in, read_int, read_text
from agent.hardware.host import Host
from agent.model import Absent, ReadKey, Reason, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.options import MOST_DEVICES, HostOptions, left_out

FAULT = gauge(
    "dgx_disk_fault",
    "1 while the disk shows this sign of failing, 0 while it shows that all is well: its "
    "controller is gone, it reports that it is too hot, its file system has recorded errors, SMART "
    "says that it fails.",
    "/sys/block/<device>/device/state, hwmon temp*_alarm; /sys/fs/ext4/<device>/errors_count; "
    "udisks2",
    ("device", "kind"),
)

BLOCK, EXT4 = "/sys/block", "/sys/fs/ext4"
DISK = re.compile(r"(nvme\d+n\d+|sd[a-z]+)")
DEAD = frozenset({"dead", "deleting", "deleting (no IO)", "offline", "transport-offline"})
"""States of NVMe controllers and SCSI devices that do no work any more; others pass."""

ALARM = re.compile(r"temp\d+_alarm")
SILENT = Absent(
    Reason.UNSUPPORTED, "udisks2 does not show SMART of it (of an NVMe disk since its version 2.10)"
)


def _disks(files: FileTree) -> list[str]:
    disks = [name for name in names_in(files, BLOCK) if DISK.fullmatch(name)]
    if not disks:
        raise Absent(Reason.MISSING, f"{BLOCK} lists no NVMe, SATA or SAS disk")
    return disks


class DiskFaults:
    """Every sign of every disk."""

    def __init__(self, files: FileTree) -> None:
        self._files = files

    def read(self, out: ReadOutput) -> None:
        disks = _disks(self._files)
        for disk in disks[:MOST_DEVICES]:
            self._controller(disk, out)
            self._heat(disk, out)
        volumes = names_in(self._files, EXT4)
        for volume in volumes[:MOST_DEVICES]:
            self._file_system(volume, out)
        if (more := left_out(max(len(disks), len(volumes)))) is not None:
            out.absent(FAULT, more)

    def _controller(self, disk: str, out: ReadOutput) -> None:
        try:
            state = read_text(self._files, f"{BLOCK}/{disk}/device/state")
        except Absent as absent:
            out.absent(FAULT, absent, disk, "controller")
        else:
            out.add(FAULT, state in DEAD, disk, "controller")

    def _heat(self, disk: str, out: ReadOutput) -> None:
        device = f"{BLOCK}/{disk}/device"
        chips = [f"{device}/{name}" for name in names_in(self._files, device) if "hwmon" in name]
        chips += [f"{chip}/{name}" for chip in chips for name in names_in(self._files, chip)]
        found = [
            f"{chip}/{file}"
            for chip in chips
            for file in names_in(self._files, chip)
            if ALARM.fullmatch(file)
        ]
        alarms = [alarm for path in found if (alarm := self._flag(path)) is not None]
        if alarms:
            out.add(FAULT, any(alarms), disk, "temperature")
        else:
            why = Absent(Reason.MISSING, f"{device} shows no alarm of its temperature")
            out.absent(FAULT, why, disk, "temperature")

    def _file_system(self, volume: str, out: ReadOutput) -> None:
        errors = self._flag(f"{EXT4}/{volume}/errors_count")
        if errors is not None:
            out.add(FAULT, errors, volume, "file_system")

    def _flag(self, path: str) -> bool | None:
        try:
            return read_int(self._files, path) > 0
        except Absent:
            return None


def _smart(host: Host, out: ReadOutput) -> None:
    """What SMART says of every disk."""
    disks = _disks(host.files)
    failing = host.smart.failing()
    for disk in disks[:MOST_DEVICES]:
        if disk in failing:
            out.add(FAULT, failing[disk], disk, "smart")
        else:
            out.absent(FAULT, SILENT, disk, "smart")


def reads(host: Host, _clock: Clock, _options: HostOptions) -> Iterator[Read]:
    """The reads of the disks' signs, and of SMART."""
    faults = DiskFaults(host.files)
    yield Read(ReadKey("disk_faults", "signs"), (FAULT,), faults.read, fixed(intervals.LINKS))
    smart = partial(_smart, host)
    yield Read(ReadKey("disk_faults", "smart"), (FAULT,), smart, fixed(intervals.SMART))
