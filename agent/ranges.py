"""Values that a metric can have (a driver's answer beyond them is a mistake), and ranges of
indices."""

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

LARGEST = sys.float_info.max


class Range(NamedTuple):
    """A range with both ends included; NaN is outside."""

    low: float = -LARGEST
    high: float = LARGEST


ANY, NOT_NEGATIVE = Range(), Range(0)
FLAG = Range(0, 1)

FASTEST_PCIE, FASTEST_NVLINK = 200e9, 4e12
"""Bytes per second that no slot, and no GPU's links together, carry."""


def consecutive(indices: Iterable[int]) -> list[list[int]]:
    """The indices in order, cut at each missing index: 0, 1, 3 are [0, 1] and [3]."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def ranges(indices: Iterable[int]) -> str:
    """The indices of GPUs as text: `0-3,5`."""
    runs = consecutive(indices)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def gpus_named(indices: Iterable[int]) -> str:
    """`GPU 3`, `GPUs 0-3,5`."""
    listed = {*indices}
    return f"{'GPUs' if len(listed) > 1 else 'GPU'} {ranges(listed)}"


@lru_cache(maxsize=4096)
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key for sorting: `gpu10` comes after `gpu9`."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def pci_address(text: str) -> tuple[int, ...]:
    """Domain, bus and device of an address, in any notation; empty if it is no address."""
    try:
        return tuple(int(part, 16) for part in re.split("[:.]", text)[:3])
    except ValueError:
        return ()


@lru_cache(maxsize=1024)
def device_ranges(devices: tuple[str, ...], between: str = ", ") -> str:
    """`gpu0-7, md0, sda`: neighbouring GPUs become a range, devices without a name are left out."""
    named = sorted(filter(None, devices), key=natural)
    gpus = [int(name[3:]) for name in named if _is_gpu(name)]
    others = [name for name in named if not _is_gpu(name)]
    return between.join([*([f"gpu{ranges(gpus)}"] if gpus else []), *others])


def _is_gpu(name: str) -> bool:
    return name.startswith("gpu") and name[3:].isdigit()
