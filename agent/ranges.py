"""Ranges of possible metric values, names of ranges of devices, and PCI and IP addresses."""

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

LARGEST = sys.float_info.max


class Range(NamedTuple):
    """A range of values that includes both endpoints, but not NaN."""

    low: float = -LARGEST
    high: float = LARGEST


ANY, NOT_NEGATIVE = Range(), Range(0)
FLAG = Range(0, 1)

FASTEST_PCIE, FASTEST_NVLINK = 200e9, 4e12
"""Upper bounds for the bytes per second of a PCIe slot, and of all NVLinks of a GPU."""


def consecutive(indices: Iterable[int]) -> list[list[int]]:
    """Return sorted lists of consecutive indices. For example, 0, 1, 3 become [0, 1] and [3]."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def gpus_named(indices: Iterable[int]) -> str:
    """Return GPU indices with a noun, for example `GPU 3` or `GPUs 1-3 and 5`."""
    runs = consecutive({*indices})
    parts = [p for r in runs for p in ([f"{r[0]}-{r[-1]}"] if len(r) > 2 else map(str, r))]
    names = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"GPU {names}" if names.isdecimal() else f"GPUs {names}"


@lru_cache(maxsize=4096)
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key for natural sorting, which puts `gpu10` after `gpu9`."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


@lru_cache(maxsize=1024)
def pci_address(text: str) -> tuple[int, ...]:
    """Return the domain, bus, and device of a PCI address in any notation, or an empty tuple."""
    try:
        return tuple(int(part, 16) for part in re.split("[:.]", text)[:3])
    except ValueError:
        return ()


def is_loopback(address: str) -> bool:
    """Return whether a string is a loopback IP address, with or without a zone ID."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def device_ranges(devices: tuple[str, ...], between: str = ", ") -> str:
    """Return a string of device names, such as `gpu0-7, nvme2-9n1, sda`. Names that differ in only
    one number are combined into a range. Empty names are omitted."""
    families: dict[str, list[list[str]]] = {}
    for name in sorted(filter(None, devices), key=natural):
        families.setdefault(re.sub(r"\d+", "#", name), []).append(re.split(r"(\d+)", name))
    return between.join(text for same in families.values() for text in _ranged(same))


def _ranged(names: list[list[str]]) -> list[str]:
    """Join names that are split into text and numbers. If only one number differs, form a range."""
    apart = [place for place, parts in enumerate(zip(*names, strict=True)) if len({*parts}) > 1]
    if len(apart) != 1:
        return list(map("".join, names))
    begin, end = ("".join(part) for part in (names[0][: apart[0]], names[0][apart[0] + 1 :]))
    runs = consecutive(int(name[apart[0]]) for name in names)
    shown = (f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return [f"{begin}{','.join(shown)}{end}"]
