"""Counters of a job's cgroup (version 2): time for which its tasks waited, and I/O bytes.

The agent prefers the counters of a job's cgroup to the counters of the host, so that a job is not
blamed for the load of other jobs.
"""

from typing import NamedTuple

from agent.hardware.files import FileTree, text_or_nothing, whole


class CgroupTotals(NamedTuple):
    """Counters of a cgroup. A counter that the cgroup lacks is missing or None.

    `stalled` contains the seconds for which any task waited, by resource. `read` and `written` are
    the bytes that tasks read from and wrote to block devices.
    """

    stalled: dict[str, float]
    read: float | None
    written: float | None


def path_of(files: FileTree, pid: int | str) -> str | None:
    """Return the cgroup path of a process (`self`: the agent), relative to /sys/fs/cgroup. Return
    None for the root cgroup, or if cgroup version 2 is not used."""
    for line in text_or_nothing(files, f"/proc/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        path = rest.partition(":")[2].strip()
        if number == "0" and path.strip("/") and ".." not in path.split("/"):
            return path
    return None


def totals(files: FileTree, path: str) -> CgroupTotals:
    """Return the current counters of a cgroup."""
    folder = f"/sys/fs/cgroup{path}"
    stalled = {}
    for resource in ("io", "memory"):
        for line in text_or_nothing(files, f"{folder}/{resource}.pressure").splitlines():
            seconds = _number(line.rpartition("total=")[2], 1e-6)
            if line.startswith("some ") and seconds is not None:
                stalled[resource] = seconds
    read, written = _io(files, f"{folder}/io.stat")
    return CgroupTotals(stalled, read, written)


def received(files: FileTree, pid: int | str) -> float | None:
    """Return the bytes that the network namespace of a process (`self`: the agent) has received."""
    numbers = []
    for line in text_or_nothing(files, f"/proc/{pid}/net/dev").splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() and rest.split():
            numbers.append(_number(rest.split()[0], 1.0))
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _io(files: FileTree, path: str) -> tuple[float | None, float | None]:
    """Return the bytes that a cgroup read and wrote. The kernel provides a line for each device,
    such as `8:0 rbytes=1 wbytes=2`. Bytes of an array (md) or mapped device (dm) are also counted
    on its disks, so the result is the largest of the sums for md, dm, and other devices."""
    levels: dict[str, list[tuple[float, float]]] = {}
    kinds = map(str.split, text_or_nothing(files, "/proc/devices").splitlines())
    virtual = ["9", *(words[0] for words in kinds if "device-mapper" in words)]  # 9: md
    for line in text_or_nothing(files, path).splitlines():
        device, *parts = line.split() or [""]
        keys = dict(part.partition("=")[::2] for part in parts)
        read, written = (_number(keys.get(key, ""), 1.0) for key in ("rbytes", "wbytes"))
        major = device.partition(":")[0]
        if read is not None and written is not None:
            level = major if major in virtual else ""
            levels.setdefault(level, []).append((read, written))
    sums = [tuple(map(sum, zip(*level, strict=True))) for level in levels.values()]
    return (max(s[0] for s in sums), max(s[1] for s in sums)) if sums else (None, None)


def _number(text: str, unit: float) -> float | None:
    return number * unit if (number := whole(text)) is not None else None
