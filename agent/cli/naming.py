"""Short names for lists of devices."""

import re
from collections.abc import Iterable

from agent.ranges import ranges


def listed(devices: Iterable[str], between: str = ", ") -> str:
    """`gpu0-7, md0, sda`: GPUs that are neighbours become a range, what has no name is left out."""
    named = sorted(filter(None, devices), key=natural)
    gpus = [int(name[3:]) for name in named if _is_gpu(name)]
    others = [name for name in named if not _is_gpu(name)]
    return between.join([*([f"gpu{ranges(gpus)}"] if gpus else []), *others])


def natural(name: str) -> list[tuple[int, str]]:
    """To sort by: `gpu10` comes after `gpu9`."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _is_gpu(name: str) -> bool:
    return name.startswith("gpu") and name[3:].isdigit()
