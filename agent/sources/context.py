"""Objects that sources use to build the reads of a GPU or of the host."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from agent.clock import Clock
from agent.config.settings import Configuration, Settings
from agent.hardware.device import NvmlDevice
from agent.hardware.files import FileTree, names_in, read_int
from agent.hardware.gpm import Gpm
from agent.hardware.host import Host
from agent.metrics import Declarations
from agent.model import Absent, GpuIdentity, Metric, ReadKey, Reason
from agent.polling import intervals
from agent.polling.gpu_state import GpuProcesses, GpuState
from agent.polling.reads import GpuRow, GpuRows, Question, Read, ReadOutput, fixed

T = TypeVar("T")
EACH_TICK = fixed(intervals.TICK)
SM_CLOCK = 1  # Value of `nvmlClockType_t`

MOST_DEVICES = 256
"""Maximum number of devices of a kind to report. With 2,000 disks, a response had 3.5 MB."""


def _question(call: str | int) -> tuple[Question, str]:
    """Parse the `call` of a metric. Return the NVML query, and the member that it selects."""
    if isinstance(call, int):
        return (call, 0), ""
    form = re.fullmatch(r"(\w+)(?:\(([\d, ]+)\))?(?:\.(\w+))?", call)
    assert form is not None, f"call = {call!r}, expected a getter as in TotalEccErrors(0, 1)"
    name, arguments, part = form.groups("")
    return (name, *map(int, re.findall(r"\d+", arguments))), part


def bounded(
    out: ReadOutput, metric: Metric, found: Sequence[T], key: str = "", *, none: str = ""
) -> Sequence[T]:
    """Return the first MOST_DEVICES devices in `found`. If there are more, add an absence with the
    number of omitted devices to `out`. The message names the setting `key`, which selects the
    devices. If there are none, raise Absent with the text `none`, unless it is empty."""
    if none and not found:
        raise Absent(Reason.MISSING, none)
    if len(found) > MOST_DEVICES:
        why = f"{len(found) - MOST_DEVICES} of {len(found)} devices are left out"
        out.absent(metric, Absent(Reason.LEFT_OUT, f"{why}; {key} chooses which" if key else why))
    return found[:MOST_DEVICES]


@dataclass(slots=True)
class Listing:
    """A cached list of devices, such as disks. The devices are listed again after a minute, or when
    `names` or `setting` change. Listing directories on every tick is expensive."""

    find: Callable[[Collection[str]], list[str]]
    _known: tuple[object, object] | None = None
    _until: float = 0.0
    _devices: list[str] = field(default_factory=list)

    def at(self, now: float, names: Collection[str] = (), setting: object = None) -> list[str]:
        known = frozenset(names), setting
        if now >= self._until or known != self._known:
            self._known, self._until = known, now + intervals.LINKS
            self._devices = self.find(names)
        return self._devices


def is_virtual(files: FileTree, device: str) -> bool:
    """Return whether a device is an SR-IOV virtual function, which a pod or VM uses."""
    return "physfn" in names_in(files, f"{device}/device")


def flag(files: FileTree, path: str, most: int = 1) -> bool | None:
    """Return whether the number in a file is above 0. Return None if the file cannot be read, or if
    it does not contain a number from 0 to `most`."""
    try:
        number = read_int(files, path)
    except Absent:
        return None
    return number > 0 if 0 <= number <= most else None


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The current settings, which a reload may change between two reads. `every` is the interval
    (s) of the reads that show why a GPU is starved."""

    configuration: Configuration = field(default_factory=Configuration)
    every: Callable[[], float] = EACH_TICK

    @property
    def settings(self) -> Settings:
        return self.configuration.current


@dataclass(frozen=True, slots=True)
class GpuContext:
    """A GPU, and the objects that its reads use. `gpm` is None if the GPU does not support GPM."""

    device: NvmlDevice
    state: GpuState
    clock: Clock
    gpus: int  # number of GPUs that take turns in the driver
    gpm: Gpm | None
    host: Host
    identities: Callable[[], Sequence[GpuIdentity]] = tuple  # of all GPUs listed by the driver
    configuration: Configuration = field(default_factory=Configuration)
    gpu_processes: GpuProcesses = field(default_factory=GpuProcesses)  # for the worker of the host

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
        """Return a read of this GPU. `every` is a number of seconds, or a function that returns it.
        If `together` is true, the reads of all GPUs run in the same tick, so that their values can
        be compared. Other reads are spread over the interval."""
        interval = fixed(every) if isinstance(every, int | float) else every
        place = self.device.identity.index / max(1, self.gpus)
        return Read(
            key=ReadKey(source, part, self.device.identity.uuid),
            metrics=tuple(metrics),
            run=run,
            every=interval,
            labels=self.device.labels,
            run_on_wake=run_on_wake,
            stagger=0.0 if together else place or None,  # not necessary for the first GPU
            varies=callable(every),
        )

    def rows(self, source: str, part: str, every: float, *rows: GpuRow) -> Read:
        metrics = dict.fromkeys(row.metric for row in rows)
        return self.table(source, part, metrics, every, lambda: rows)

    def table(
        self,
        source: str,
        part: str,
        metrics: Iterable[Metric],
        every: float,
        rows: Callable[[], Iterable[GpuRow]],
    ) -> Read:
        """Return a read for several GPU rows. It runs hourly if the driver supports none."""
        table = GpuRows(self.device, rows)

        def interval() -> float:
            return intervals.TOPOLOGY if table.refused else every

        return self.read(source, part, metrics, table.read, interval)

    def declared(self, source: str, declarations: Declarations) -> Iterator[Read]:
        """Yield the reads of all metrics in `declarations` that have a `call`."""
        by_read: dict[tuple[str, str], list[GpuRow]] = {}
        for metric, table in declarations.asked:
            calls = table.call if isinstance(table.call, dict) else {"": table.call}
            for labels, call in calls.items():
                asked, part = _question(call)
                row = GpuRow(metric, asked, tuple(labels.split()), table.times, table.per, part)
                by_read.setdefault((table.source or source, table.every), []).append(row)
        for (name, every), rows in by_read.items():
            yield self.rows(name, every, getattr(intervals, every.upper()), *rows)

    def gpm_interval(self) -> float:
        return intervals.ACTIVITY_BUSY if self.state.has_processes else intervals.ACTIVITY_IDLE
