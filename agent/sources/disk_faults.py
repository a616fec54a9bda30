"""Disks that fail, by what the kernel shows to everybody, and by SMART where udisks2 reports it."""

import re
from collections.abc import Iterator
from functools import partial

from agent.hardware.files import FileTree, names_in, read_text
from agent.hardware.host import Host
from agent.model import Absent, ReadKey, Reason, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import MOST_DEVICES, HostOptions, flag, left_out

FAULT = gauge(
    "dgx_disk_fault",
    "1 while the disk shows this sign of failing, 0 while it shows that it is healthy: its "
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

ALARM = re.compile(r"/temp\d+_alarm$")
SILENT = Absent(
    Reason.UNSUPPORTED, "udisks2 does not show SMART of it (of an NVMe disk since its version 2.10)"
)


def _disks(files: FileTree) -> list[str]:
    disks = [name for name in names_in(files, BLOCK) if DISK.fullmatch(name)]
    if not disks:
        raise Absent(Reason.MISSING, f"{BLOCK} lists no NVMe, SATA or SAS disk")
    return disks


def _is_dead(files: FileTree, device: str) -> bool:
    return read_text(files, f"{device}/state") in DEAD


def _signs(files: FileTree, out: ReadOutput) -> None:
    disks, volumes = _disks(files), names_in(files, EXT4)
    for disk in disks[:MOST_DEVICES]:
        device = f"{BLOCK}/{disk}/device"
        out.ask(FAULT, partial(_is_dead, files, device), disk, "controller")
        chips = [f"{device}/{name}" for name in names_in(files, device) if "hwmon" in name]
        chips += [f"{chip}/{name}" for chip in chips for name in names_in(files, chip)]
        found = [f"{chip}/{file}" for chip in chips for file in names_in(files, chip)]
        flags = [flag(files, path) for path in found if ALARM.search(path)]
        alarms = [raised for raised in flags if raised is not None]
        silent = Absent(Reason.MISSING, f"{device} shows no alarm of its temperature")
        out.add(FAULT, any(alarms) if alarms else silent, disk, "temperature")
    for volume in volumes[:MOST_DEVICES]:
        errors = flag(files, f"{EXT4}/{volume}/errors_count")
        if errors is not None:
            out.add(FAULT, errors, volume, "file_system")
    if (more := left_out(max(len(disks), len(volumes)))) is not None:
        out.absent(FAULT, more)


def _smart(host: Host, out: ReadOutput) -> None:
    disks = _disks(host.files)
    failing = host.smart.failing()
    for disk in disks[:MOST_DEVICES]:
        out.add(FAULT, failing.get(disk, SILENT), disk, "smart")


def reads(host: Host, _options: HostOptions) -> Iterator[Read]:
    signs, smart = partial(_signs, host.files), partial(_smart, host)
    yield Read(ReadKey("disk_faults", "signs"), (FAULT,), signs, fixed(intervals.LINKS))
    yield Read(ReadKey("disk_faults", "smart"), (FAULT,), smart, fixed(intervals.SMART))
