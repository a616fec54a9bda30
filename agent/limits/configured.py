"""Limits that the owner of a machine knows better than the spec sheets: `[[limit]]`."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from agent.config.decoding import Mismatch
from agent.config.settings import Section
from agent.specs.sheets import PATHS

DIRECTIONS = {path: ways for path, (_, ways) in PATHS.items()}
"""The data paths that a limit can be configured for, and their directions."""

MOST_RATE = 1e18  # Bytes per second; TOML knows no bounds, and floats do

Path = Literal["nvlink", "pcie", "hbm", "disk", "network", "infiniband"]
Device = Annotated[str, Meta(min_length=1, description="a name such as md0, eth0 or gpu0")]
Rate = Annotated[
    float, Meta(gt=0, le=MOST_RATE, description=f"a number above 0 and at most {MOST_RATE:g}")
]


class LimitConfig(Struct, frozen=True):
    """Bytes per second of one path, device and direction."""

    path: Path
    device: Device
    direction: str
    bytes_per_second: Rate

    def __post_init__(self) -> None:
        directions = DIRECTIONS[self.path]
        if self.direction not in directions:
            raise Mismatch("direction", repr(self.direction), f"one of {', '.join(directions)}")


class LimitsConfig(Section, frozen=True):
    """Every limit that is configured, each path once."""

    table = ""
    limit: tuple[LimitConfig, ...] = ()

    def __post_init__(self) -> None:
        seen: set[tuple[str, ...]] = set()
        for number, one in enumerate(self.limit):
            path = (one.path, one.device, one.direction)
            if path in seen:
                found = f"the second of {' '.join(path)}"
                raise Mismatch(f"limit[{number}]", found, "one", of_key=True)
            seen.add(path)
