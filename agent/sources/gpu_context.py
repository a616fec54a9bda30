"""What sources need to build the reads of one GPU."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.config.settings import Configuration
from agent.hardware.device import NvmlDevice
from agent.hardware.gpm import Gpm
from agent.hardware.host import Host
from agent.model import GpuIdentity, Metric, ReadKey
from agent.polling.gpu_processes import GpuProcesses
from agent.polling.gpu_state import GpuState
from agent.polling.reads import FoundRun, Read, ReadOutput, ValueRow, ValueRows, fixed


@dataclass(frozen=True, slots=True)
class GpuContext:
    """One GPU as it is being asked what it answers; `gpm` is None where it has none."""

    device: NvmlDevice
    state: GpuState
    clock: Clock
    gpus: int  # how many share the driver, and so take turns
    gpm: Gpm | None
    host: Host
    identities: Sequence[GpuIdentity] = ()  # of all GPUs of the driver
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

    def found(
        self,
        source: str,
        part: str,
        metrics: Iterable[Metric],
        find: Callable[[], Callable[[ReadOutput], None]],
        every: float,
        *,
        again: Callable[[], None] = lambda: None,
    ) -> Read:
        """A read that `find` makes of what it finds on this GPU, at the first run. Where it raises
        Absent the read says why, and asks again: at the next run, or for a reason that holds until
        the next query, then, as `again` does for what was found."""
        found = FoundRun(find, again)
        read = self.read(source, part, metrics, found.run, every)
        read.again = found.ask_again
        return read

    def table(
        self,
        source: str,
        part: str,
        rows: Iterable[ValueRow[NvmlDevice]],
        every: float | Callable[[], float],
    ) -> Read:
        """A read of a table of one-value rows."""
        table = tuple(rows)
        metrics = dict.fromkeys(row.metric for row in table)
        asked = ValueRows(self.device, table)
        read = self.read(source, part, metrics, asked.read, every)
        read.again = asked.ask_again
        return read
