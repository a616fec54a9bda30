"""Whole disks and md arrays: bytes, busy time, models, lost members, and failing disks. The values
come from files that all users can read. One of them contains SMART data from udisks2."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from agent.config.settings import Section
from agent.hardware.files import FileTree, names_in, read_int, read_text, text_or_nothing, whole
from agent.hardware.host import Host
from agent.metrics import declared_beside
from agent.model import Absent, ReadKey, Reason, checked
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.ranges import Range
from agent.sources.context import HostOptions, Listing, bounded, flag


class DiskConfig(Section, frozen=True):
    """Settings for disks. Disks whose names match the pattern `ignore` are not reported."""

    table = "disk"
    ignore: re.Pattern[str] = re.compile(r"^(loop|ram|zram|sr|fd|dm-)\d+")


_METRICS = declared_beside(__file__)
READ_BYTES = _METRICS["dgx_disk_read_bytes_total"]
WRITTEN_BYTES = _METRICS["dgx_disk_written_bytes_total"]
BUSY = _METRICS["dgx_disk_busy_seconds_total"]
DISK_INFO = replace(_METRICS["dgx_disk_info"], which=lambda labels: labels[-1] != "")  # in an array
MEMBERS = _METRICS["dgx_raid_members"]
MEMBER_FAILED = _METRICS["dgx_raid_member_failed"]
FAULT = _METRICS["dgx_disk_fault"]

BLOCK, EXT4 = "/sys/block", "/sys/fs/ext4"
STOPPED = {"clear", "inactive", "broken"}
"""States of an array that is not running. The `raid_disks` file of such an array may contain 0."""

SURVIVES = {"raid0": 0, "linear": 0, "raid4": 1, "raid5": 1, "raid6": 2}
"""Number of members that an array can lose, by RAID level. RAID 10 can lose half of its members,
and any other level (mirrors) can lose all members but one."""

SET = re.compile(r"external:[^/]")
"""Pattern for the metadata version of an md container. A container is a set of disks on which the
firmware creates arrays. It is never in a running state itself."""

NO_DISK = f"{BLOCK} lists no disk that is not ignored"
NO_BUSY_TIME = Absent(Reason.UNSUPPORTED, "the kernel counts no time for this device")


def _counters(host: Host, options: HostOptions) -> Callable[[ReadOutput], None]:
    """Return the function that reads the counters of all whole disks."""

    def find(names: Collection[str]) -> list[str]:
        return [disk for disk in whole_disks(host.files, options) if counted(disk) in names]

    listing = Listing(find)

    def read(out: ReadOutput) -> None:
        stats = host.psutil.disk_io_counters(perdisk=True, nowrap=False)
        disks = listing.at(out.at, stats, options.settings[DiskConfig].ignore)
        for disk in bounded(out, READ_BYTES, disks, "disk.ignore", none=NO_DISK):
            of = stats[counted(disk)]
            out.add(READ_BYTES, of.read_bytes, disk)
            out.add(WRITTEN_BYTES, of.write_bytes, disk)
            # kernels before 5.10 do not count the busy time of arrays
            timed = of.busy_time > 0 or of.read_bytes + of.write_bytes == 0
            out.add(BUSY, of.busy_time / 1000 if timed else NO_BUSY_TIME, disk)

    return read


def _infos(host: Host, options: HostOptions, out: ReadOutput) -> None:
    files, disks = host.files, whole_disks(host.files, options)
    blocks = names_in(files, BLOCK)
    arrays = {a: members(files, a, blocks) for a in arrays_among(files, blocks)}
    for disk in bounded(out, DISK_INFO, disks, "disk.ignore", none=NO_DISK):
        kind, model = ("raid", "md/level") if disk in arrays else ("disk", "device/model")
        within = ",".join(array for array, its in arrays.items() if disk in its)
        name = text_or_nothing(files, f"{BLOCK}/{disk}/{model}")
        out.add(DISK_INFO, 1, disk, name, kind, within)


def _arrays(
    host: Host, options: HostOptions, seen: dict[str, dict[str, None]], out: ReadOutput
) -> None:
    """Read the states of all arrays. `seen` contains their members in earlier reads, by name."""
    files, blocks = host.files, names_in(host.files, BLOCK)
    ignored = options.settings[DiskConfig].ignore
    arrays = [
        array
        for array in arrays_among(files, blocks)
        if not ignored.search(array)
        and not SET.match(text_or_nothing(files, f"{BLOCK}/{array}/md/metadata_version"))
    ]
    for array in bounded(out, MEMBERS, arrays, "disk.ignore", none=f"{BLOCK} lists no md array"):
        try:
            if text_or_nothing(files, f"{BLOCK}/{array}/md/array_state") in STOPPED:
                expected, missing = 1, 1  # the number of members is unknown
            else:
                expected = raid_disks(files, array)
                missing = missing_members(files, array, expected, blocks)
        except Absent as absent:
            out.absent(MEMBERS, absent, array)
        else:
            now = members(files, array, blocks)
            states = {disk: _states(files, array, disk) for disk in now}
            # md has not noticed these yet
            missing += sum("in_sync" in state and dead for state, dead in states.values())
            known = seen.get(array, {}) | dict.fromkeys(now)
            sound = {d for d, (state, dead) in states.items() if "faulty" not in state and not dead}
            failed = [disk for disk in known if missing and disk not in sound]
            seen[array] = known if missing else dict.fromkeys(now)
            if failed and len(failed) == len(known):  # md never marks a mirror's last member faulty
                missing = expected
            level = text_or_nothing(files, f"{BLOCK}/{array}/md/level")
            most = expected // 2 if level == "raid10" else SURVIVES.get(level, expected - 1)
            most = 0 if level == "raid10" and copies_lost(files, array, expected, states) else most
            out.add(MEMBERS, expected - missing if missing <= most else 0, array, "working")
            out.add(MEMBERS, missing, array, "missing")
            for disk in bounded(out, MEMBER_FAILED, failed):
                out.add(MEMBER_FAILED, 1, array, disk)


def copies_lost(
    files: FileTree, array: str, expected: int, states: Mapping[str, tuple[str, bool]]
) -> bool:
    """Return whether no copy of some data of a RAID 10 array is left. If its layout has only near
    copies, adjacent members have the same data."""
    layout = whole(text_or_nothing(files, f"{BLOCK}/{array}/md/layout"), 9) or 0
    copies, far = layout & 255, layout >> 8 & 255
    slots = {d: text_or_nothing(files, f"{BLOCK}/{array}/md/dev-{d}/slot") for d in states}
    if copies < 2 or far != 1 or expected % copies or not all(slots.values()):
        return False
    sound = [d for d, (state, dead) in states.items() if "in_sync" in state and not dead]
    return len({(whole(slots[d], 9) or 0) // copies for d in sound}) < expected // copies


def _states(files: FileTree, array: str, disk: str) -> tuple[str, bool]:
    """Return the contents of an array member's state file, and whether the disk has failed."""
    state = text_or_nothing(files, f"{BLOCK}/{array}/md/dev-{disk}/state")
    return state, text_or_nothing(files, f"{BLOCK}/{disk}/device/state") in DEAD


def counted(disk: str) -> str:
    """Return the name in /proc/diskstats of a disk in /sys, where slashes are `!` (cciss!c0d0)."""
    return disk.replace("!", "/")


def whole_disks(files: FileTree, options: HostOptions) -> list[str]:
    """Return the names of arrays and then of whole disks."""
    ignored = options.settings[DiskConfig].ignore
    found = [
        name
        for name in names_in(files, BLOCK)
        if not ignored.search(name)
        and text_or_nothing(files, f"{BLOCK}/{name}/hidden") != "1"
        and text_or_nothing(files, f"{BLOCK}/{name}/size") != "0"  # no medium
    ]
    return sorted(found, key=lambda name: not name.startswith("md"))


def arrays_among(files: FileTree, blocks: Collection[str]) -> list[str]:
    return [b for b in blocks if b.startswith("md") and names_in(files, f"{BLOCK}/{b}/md")]


def members(files: FileTree, array: str, blocks: Collection[str]) -> list[str]:
    slaves = names_in(files, f"{BLOCK}/{array}/slaves")
    return [disk for slave in slaves if (disk := _disk_of(files, slave, blocks))]


def _disk_of(files: FileTree, name: str, blocks: Collection[str]) -> str | None:
    if name in blocks:
        return name
    candidates = (block for block in blocks if name.startswith(block))
    return next((b for b in candidates if name in names_in(files, f"{BLOCK}/{b}")), None)


def raid_disks(files: FileTree, array: str) -> int:
    """Return the number of members of an array. During a reshape, return the new number."""
    path = f"{BLOCK}/{array}/md/raid_disks"
    text = read_text(files, path)
    if not (number := whole(text.partition(" ")[0], 9)):
        raise Absent(Reason.UNKNOWN, f"{path} holds {text!r:.60}, expected a number above 0")
    return number


def missing_members(files: FileTree, array: str, expected: int, blocks: Collection[str]) -> int:
    """Return the number of missing members of an array. Arrays without redundancy have no file
    `degraded`, so count the members in `blocks`."""
    path = f"{BLOCK}/{array}/md/degraded"
    try:
        return int(checked(read_int(files, path), Range(0, expected), path))
    except Absent as absent:
        if absent.reason is not Reason.MISSING:
            raise
        return max(0, expected - len(members(files, array, blocks)))


DISK = re.compile(r"(nvme\d+n\d+|sd[a-z]+)")
DEAD = frozenset({"dead", "deleting", "deleting (no IO)", "offline", "transport-offline"})
"""States of an NVMe controller or SCSI device that has failed. All other states are temporary."""

SMART = "/run/dgx-telemetry-smart/objects.json"
"""File with the udisks2 objects. dgx-telemetry-smart.service writes it every ten minutes, because
only root can query the disks. The file is removed when the service stops. storaged.org/udisks/docs
documents the interfaces: org.freedesktop.UDisks2.Drive.Ata and .NVMe.Controller."""

UDISKS = "org.freedesktop.UDisks2"
SILENT = Absent(
    Reason.UNSUPPORTED, "udisks2 does not show SMART of it (of an NVMe disk since its version 2.10)"
)
NOT_ASKED = Absent(
    Reason.MISSING,
    "SMART is for root, and dgx-telemetry-smart.service, which asks udisks2 for it, has no answer: "
    "install both, or run smartd",
)


def _real_disks(files: FileTree) -> list[str]:
    disks = [name for name in names_in(files, BLOCK) if DISK.fullmatch(name)]
    if not disks:
        raise Absent(Reason.MISSING, f"{BLOCK} lists no NVMe, SATA or SAS disk")
    return disks


def _signs(files: FileTree, out: ReadOutput) -> None:
    for disk in bounded(out, FAULT, _real_disks(files)):
        device = f"{BLOCK}/{disk}/device"
        state = partial(read_text, files, f"{device}/state")
        out.ask(FAULT, lambda state=state: state() in DEAD, disk, "controller")  # type: ignore[misc]
        chips = [f"{device}/{name}" for name in names_in(files, device) if "hwmon" in name]
        chips += [f"{chip}/{name}" for chip in chips for name in names_in(files, chip)]
        found = [f"{chip}/{file}" for chip in chips for file in names_in(files, chip)]
        flags = [flag(files, path) for path in found if re.search(r"/temp\d+_alarm$", path)]
        alarms = [raised for raised in flags if raised is not None]
        silent = Absent(Reason.UNSUPPORTED, f"{disk} reports no alarm of its temperature")
        out.add(FAULT, any(alarms) if alarms else silent, disk, "temperature")
    for volume in bounded(out, FAULT, names_in(files, EXT4)):
        errors = flag(files, f"{EXT4}/{volume}/errors_count", most=1 << 31)
        if errors is not None:
            out.add(FAULT, errors, volume, "file_system")


def _smart(files: FileTree, out: ReadOutput) -> None:
    disks, text = _real_disks(files), text_or_nothing(files, SMART)
    if not text:
        raise NOT_ASKED.without_traceback()
    try:
        failing = verdicts(json.loads(text)["data"][0])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Absent(Reason.FAILED, f"{SMART} is of another form ({error!r})") from error
    for disk in bounded(out, FAULT, disks):
        out.add(FAULT, failing.get(disk, SILENT), disk, "smart")


def verdicts(objects: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, bool]:
    """Return whether each whole disk in the udisks2 objects is failing, by disk name. Omit disks
    whose SMART data udisksd has not read. An NVMe disk that is only too hot is not failing."""
    found: dict[str, bool] = {}
    for path, interfaces in objects.items():
        block = interfaces.get(f"{UDISKS}.Block")
        if block is None or f"{UDISKS}.Partition" in interfaces:
            continue
        drive, name = objects.get(block["Drive"]["data"], {}), path.rpartition("/")[2]
        ata, nvme = (drive.get(f"{UDISKS}.{of}", {}) for of in ("Drive.Ata", "NVMe.Controller"))
        if "SmartCriticalWarning" in nvme and nvme["SmartUpdated"]["data"]:
            found[name] = bool(set(nvme["SmartCriticalWarning"]["data"]) - {"temperature"})
        if "SmartFailing" in ata and ata["SmartUpdated"]["data"]:
            found[name] = bool(ata["SmartFailing"]["data"])
    return found


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    run, key = _counters(host, options), ReadKey("disk", "counters")
    yield Read(key, (READ_BYTES, WRITTEN_BYTES, BUSY), run, options.every, varies=True)
    for source, part, metric, done, every in (
        ("disk", "info", DISK_INFO, partial(_infos, host, options), intervals.LINKS),
        ("disk", "arrays", MEMBERS, partial(_arrays, host, options, {}), intervals.LINK_STATE),
        ("disk_faults", "signs", FAULT, partial(_signs, host.files), intervals.LINKS),
        ("disk_faults", "smart", FAULT, partial(_smart, host.files), intervals.SMART),
    ):
        yield Read(ReadKey(source, part), (metric,), done, fixed(every))
