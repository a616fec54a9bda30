"""A probe: what sources need to build the reads of one GPU."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agent import beats
from agent.backends.device import Device
from agent.backends.gpm import Gpm
from agent.backends.host import Host
from agent.clock import Clock
from agent.model import Metric, ReadKey
from agent.reads import Out, Read, Row, Rows, fixed
from agent.workload.occupants import Occupants


@dataclass(frozen=True, slots=True)
class Probe:
    """One GPU as it is being asked what it answers; `gpm` is None where it has none."""

    device: Device
    clock: Clock
    gpus: int  # how many share the driver, and so take turns
    gpm: Gpm | None
    host: Host
    # By the spec sheet of this system, if known; and per-process series at most, of each GPU.
    # Both are asked at each read, for a reload may change them.
    nvlink_links_expected: Callable[[], int | None] = lambda: None
    process_series: Callable[[], int] = lambda: 0
    occupants: Occupants = field(default_factory=Occupants)  # where the host lane learns of pids

    def read(
        self,
        source: str,
        part: str,
        metrics: Iterable[Metric],
        run: Callable[[Out], None],
        every: float | Callable[[], float],
        *,
        prompt: bool = False,
    ) -> Read:
        """One read of this GPU; `every` in seconds, or a function that gives them."""
        beat = fixed(every) if isinstance(every, int | float) else every
        stagger = self.device.identity.index / max(1, self.gpus)
        return Read(
            key=ReadKey(source, part, self.device.identity.uuid),
            metrics=tuple(metrics),
            run=run,
            every=beat,
            labels=self.device.labels,
            prompt=prompt,
            stagger=stagger if beat() > beats.TICK else 0.0,
            varies=callable(every),
        )

    def table(
        self,
        source: str,
        part: str,
        rows: Iterable[Row[Device]],
        every: float | Callable[[], float],
    ) -> Read:
        """A read of a table of one-value rows."""
        table = tuple(rows)
        metrics = dict.fromkeys(row.metric for row in table)
        asked = Rows(self.device, table)
        read = self.read(source, part, metrics, asked.read, every)
        read.again = asked.ask_again
        return read
