"""Whole disks and arrays: bytes, requests, times, models, and whether one has lost a member."""

import re
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from agent.config.settings import Section
from agent.hardware.files import FileTree, names_in, read_int, read_text, text_or_nothing
from agent.hardware.host import Host
from agent.model import Absent, ReadKey, Reason, counter, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.ranges import FASTEST_WIRE
from agent.sources.context import MOST_DEVICES, HostOptions, bounded, left_out


class DiskConfig(Section, frozen=True):
    """Disks whose name matches `ignore` are left out."""

    table = "disk"
    ignore: re.Pattern[str] = re.compile(r"^(loop|ram|zram|sr|fd|dm-)\d+")


READ_BYTES = counter(
    "dgx_disk_read_bytes_total",
    "Bytes read from the disk or array since boot.",
    "psutil.disk_io_counters(perdisk=True).read_bytes, of /proc/diskstats",
    ("device",),
    fastest=FASTEST_WIRE,
)
WRITTEN_BYTES = counter(
    "dgx_disk_written_bytes_total",
    "Bytes written to the disk or array since boot.",
    "psutil.disk_io_counters(perdisk=True).write_bytes, of /proc/diskstats",
    ("device",),
    fastest=FASTEST_WIRE,
)
BUSY = counter(
    "dgx_disk_busy_seconds_total",
    "Seconds since boot in which the disk or array had at least one request in flight; being busy "
    "all of the time is not yet saturation, because NVMe disks serve many requests at once.",
    "psutil.disk_io_counters(perdisk=True).busy_time, of /proc/diskstats",
    ("device",),
)
READS = counter(
    "dgx_disk_reads_total",
    "Read requests that the disk or array has finished since boot; its rate is IOPS.",
    "psutil.disk_io_counters(perdisk=True).read_count, of /proc/diskstats",
    ("device",),
)
WRITES = counter(
    "dgx_disk_writes_total",
    "Write requests that the disk or array has finished since boot; its rate is IOPS.",
    "psutil.disk_io_counters(perdisk=True).write_count, of /proc/diskstats",
    ("device",),
)
READ_SECONDS = counter(
    "dgx_disk_read_seconds_total",
    "Seconds that all read requests took together since boot; over the rate of "
    "dgx_disk_reads_total it is the mean latency of a read.",
    "psutil.disk_io_counters(perdisk=True).read_time, of /proc/diskstats",
    ("device",),
)
WRITE_SECONDS = counter(
    "dgx_disk_write_seconds_total",
    "Seconds that all write requests took together since boot; over the rate of "
    "dgx_disk_writes_total it is the mean latency of a write.",
    "psutil.disk_io_counters(perdisk=True).write_time, of /proc/diskstats",
    ("device",),
)
INFO = gauge(
    "dgx_disk_info",
    "1 for each whole disk (kind disk; model) and md array (kind raid; its level for a model); "
    "array names the arrays that a disk is a member of.",
    "/sys/block/<device>/device/model, md/level, slaves",
    ("device", "model", "kind", "array"),
)
MEMBERS = gauge(
    "dgx_raid_members",
    "Members of the md array that work, and that are missing; 0 and 1 if the array does not run.",
    "/sys/block/<device>/md/array_state, raid_disks, degraded, or slaves still there (RAID 0)",
    ("device", "state"),
)

BLOCK = "/sys/block"
MOST_DIGITS = 9
STOPPED = {"clear", "inactive"}  # States of an array that does not run; `raid_disks` may be 0 then
ARRAY_STATE = 5.0  # seconds between two checks of the arrays
NO_DISK = f"{BLOCK} lists no disk that is not ignored"
NO_BUSY_TIME = Absent(Reason.UNSUPPORTED, "the kernel counts no time for this device")


class DiskCountersRead:
    """Bytes, requests and times of every whole disk; which those are is asked when names change."""

    def __init__(self, host: Host, options: HostOptions) -> None:
        self._host = host
        self._options = options
        self._ignored = options.settings[DiskConfig].ignore
        self._seen: frozenset[str] = frozenset()
        self._devices: list[str] = []
        self._left_out: Absent | None = None
        self._list_at = 0.0

    def read(self, out: ReadOutput) -> None:
        stats = self._host.psutil.disk_io_counters(perdisk=True, nowrap=False)
        ignored = self._options.settings[DiskConfig].ignore
        if out.at >= self._list_at or stats.keys() != self._seen or ignored != self._ignored:
            self._list_at, self._ignored = out.at + intervals.LINKS, ignored
            self._seen = frozenset(stats)
            disks = [disk for disk in whole_disks(self._host.files, ignored) if disk in stats]
            self._devices, self._left_out = bounded(disks, "disk.ignore", "md")
        if not self._devices:
            raise Absent(Reason.MISSING, NO_DISK)
        for device in self._devices:
            self._add(out, device, stats[device])
        if self._left_out is not None:
            out.absent(READ_BYTES, self._left_out)

    def _add(self, out: ReadOutput, device: str, of: Any) -> None:
        out.add(READ_BYTES, of.read_bytes, device)
        out.add(WRITTEN_BYTES, of.write_bytes, device)
        out.add(READS, of.read_count, device)
        out.add(WRITES, of.write_count, device)
        times = {BUSY: of.busy_time, READ_SECONDS: of.read_time, WRITE_SECONDS: of.write_time}
        uncounted = of.busy_time == 0 and of.read_bytes + of.write_bytes > 0
        for metric, milliseconds in times.items():
            if uncounted:  # arrays on kernels before 5.10
                out.absent(metric, NO_BUSY_TIME, device)
            else:
                out.add(metric, milliseconds / 1000, device)


def _infos(host: Host, options: HostOptions, out: ReadOutput) -> None:
    files = host.files
    disks = whole_disks(files, options.settings[DiskConfig].ignore)
    if not disks:
        raise Absent(Reason.MISSING, NO_DISK)
    blocks = names_in(files, BLOCK)
    arrays = {a: members(files, a, blocks) for a in arrays_among(files, blocks)}
    for disk in bounded(disks, "disk.ignore", "md")[0]:
        kind, model = ("raid", "md/level") if disk in arrays else ("disk", "device/model")
        within = ",".join(array for array, its in arrays.items() if disk in its)
        name = text_or_nothing(files, f"{BLOCK}/{disk}/{model}")
        out.add(INFO, 1, disk, name, kind, within)


def _arrays(host: Host, options: HostOptions, out: ReadOutput) -> None:
    blocks, ignored = names_in(host.files, BLOCK), options.settings[DiskConfig].ignore
    arrays = [a for a in arrays_among(host.files, blocks) if not ignored.search(a)]
    if not arrays:
        raise Absent(Reason.MISSING, f"{BLOCK} lists no md array")
    if (more := left_out(len(arrays), "disk.ignore")) is not None:
        out.absent(MEMBERS, more)
    for array in arrays[:MOST_DEVICES]:
        try:
            if text_or_nothing(host.files, f"{BLOCK}/{array}/md/array_state") in STOPPED:
                expected, working = 1, 0  # how many it had is not known any more
            else:
                expected = raid_disks(host.files, array)
                working = working_members(host.files, array, expected, blocks)
        except Absent as absent:
            out.absent(MEMBERS, absent, array)
        else:
            out.add(MEMBERS, working, array, "working")
            out.add(MEMBERS, max(0, expected - working), array, "missing")


def whole_disks(files: FileTree, ignore: re.Pattern[str]) -> list[str]:
    return [
        name
        for name in names_in(files, BLOCK)
        if not ignore.search(name) and text_or_nothing(files, f"{BLOCK}/{name}/hidden") != "1"
    ]


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
    """Return the number of members of the array; while it is reshaped, the new number comes
    first."""
    path = f"{BLOCK}/{array}/md/raid_disks"
    text = read_text(files, path)
    first = text.partition(" ")[0]
    if not first.isdecimal() or len(first) > MOST_DIGITS or int(first) == 0:
        raise Absent(Reason.UNKNOWN, f"{path} holds {text!r:.60}, expected a number above 0")
    return int(first)


def working_members(files: FileTree, array: str, expected: int, blocks: Collection[str]) -> int:
    """Return the number of working members; levels without redundancy have no `degraded`: count the
    rest."""
    try:
        return expected - read_int(files, f"{BLOCK}/{array}/md/degraded")
    except Absent as absent:
        if absent.reason is not Reason.MISSING:
            raise
        return len(members(files, array, blocks))


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    counted = (READ_BYTES, WRITTEN_BYTES, BUSY, READS, WRITES, READ_SECONDS, WRITE_SECONDS)
    counters = DiskCountersRead(host, options)
    infos, arrays = partial(_infos, host, options), partial(_arrays, host, options)
    key = ReadKey("disk", "counters")
    yield Read(key, counted, counters.read, options.every, varies=True)
    yield Read(ReadKey("disk", "info"), (INFO,), infos, fixed(intervals.LINKS))
    yield Read(ReadKey("disk", "arrays"), (MEMBERS,), arrays, fixed(ARRAY_STATE))
