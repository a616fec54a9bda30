"""Options of sources."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from agent.config.settings import Configuration, Section, Settings
from agent.hardware.files import FileTree, read_int
from agent.model import Absent, Reason
from agent.polling import intervals
from agent.polling.reads import fixed

EACH_TICK = fixed(intervals.TICK)

MOST_DEVICES = 256
"""Disks, NICs, ports, arrays and sensors, of each, that are reported: 2,000 disks were 3.5 MB a
scrape."""


def left_out(count: int, key: str = "") -> Absent | None:
    """Return the absence that says how many of so many devices are left out; `key` is the setting
    that selects them."""
    if count <= MOST_DEVICES:
        return None
    why = f"{count - MOST_DEVICES} of {count} devices are left out"
    return Absent(Reason.LEFT_OUT, f"{why}; {key} chooses which" if key else why)


def bounded(names: Collection[str], key: str, first: str = "\0") -> tuple[list[str], Absent | None]:
    """As many names as are kept, those that begin with `first` before others, and what says that
    some are left out."""
    kept = sorted(names, key=lambda name: (not name.startswith(first), name))[:MOST_DEVICES]
    return sorted(kept), left_out(len(names), key)


def flag(files: FileTree, path: str) -> bool | None:
    """Return whether a file holds a number above 0; None where it cannot be read."""
    try:
        return read_int(files, path) > 0
    except Absent:
        return None


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The settings, and the interval (s) of the counters that say what starves a GPU. A reload
    changes settings at any moment: sources look here at each read."""

    configuration: Configuration = field(default_factory=Configuration)
    every: Callable[[], float] = EACH_TICK

    @property
    def settings(self) -> Settings:
        return self.configuration.current


class NvlinkConfig(Section, frozen=True):
    """Option to count bytes per link, against the limit of each link, so that a slow link stands
    out. Totals, errors and the state of each link always are."""

    table = "nvlink"
    per_link: bool = True
