"""Context from which sources build the reads of one GPU or of the host."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.config.settings import Configuration, Section, Settings
from agent.hardware.device import NvmlDevice
from agent.hardware.files import FileTree, read_int
from agent.hardware.gpm import Gpm
from agent.hardware.host import Host
from agent.model import Absent, GpuIdentity, Metric, ReadKey, Reason
from agent.polling import intervals
from agent.polling.gpu_state import GpuProcesses, GpuState
from agent.polling.reads import GpuRow, GpuRows, Read, ReadOutput, fixed

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


@dataclass(frozen=True, slots=True)
class GpuContext:
    """One GPU as it is being asked what it answers; `gpm` is None where it has none."""

    device: NvmlDevice
    state: GpuState
    clock: Clock
    gpus: int  # how many share the driver, and so take turns
    gpm: Gpm | None
    host: Host
    identities: Callable[[], Sequence[GpuIdentity]] = tuple  # of all GPUs of the driver
    configuration: Configuration = field(default_factory=Configuration)
    gpu_processes: GpuProcesses = field(
        default_factory=GpuProcesses
    )  # where the host worker learns of pids

    def read(
        self,
        source: str,
        part: str,
        metrics: Iterable[Metric],
        run: Callable[[ReadOutput], None],
        every: float | Callable[[], float],
        *,
        run_on_wake: bool = False,
        together: bool = False,
    ) -> Read:
        """One read of this GPU; `every` in seconds, or a function that gives them. What is compared
        between GPUs is read `together`, in one tick; with all else they take turns."""
        interval = fixed(every) if isinstance(every, int | float) else every
        place = self.device.identity.index / max(1, self.gpus)
        return Read(
            key=ReadKey(source, part, self.device.identity.uuid),
            metrics=tuple(metrics),
            run=run,
            every=interval,
            labels=self.device.labels,
            run_on_wake=run_on_wake,
            stagger=0.0 if together else place or None,  # the first GPU needs none
            varies=callable(every),
        )

    def rows(self, source: str, part: str, every: float, *rows: GpuRow) -> Read:
        """A read of a table; seldom where all of it is refused for good."""
        metrics, table = dict.fromkeys(row.metric for row in rows), GpuRows(self.device, rows)

        def interval() -> float:
            return intervals.TOPOLOGY if table.refused else every

        return self.read(source, part, metrics, table.read, interval)

    def gpm_interval(self) -> float:
        return intervals.ACTIVITY_BUSY if self.state.has_processes else intervals.ACTIVITY_IDLE
