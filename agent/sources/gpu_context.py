"""Context from which sources build the reads of one GPU."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.config.settings import Configuration
from agent.hardware.device import NvmlDevice
from agent.hardware.gpm import Gpm
from agent.hardware.host import Host
from agent.model import GpuIdentity, Metric, ReadKey
from agent.polling import intervals
from agent.polling.gpu_state import GpuProcesses, GpuState
from agent.polling.reads import GpuRow, GpuRows, Read, ReadOutput, fixed


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
        """The interval of all reads of GPM (s), which share one measurement of a tick."""
        return intervals.ACTIVITY_BUSY if self.state.has_processes else intervals.ACTIVITY_IDLE
