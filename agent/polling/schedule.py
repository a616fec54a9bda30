"""The reads of one backend, run one after the other when they are due."""

from collections.abc import Iterable

from agent.clock import Clock
from agent.polling.reads import Read, ReadCosts, is_due, is_pending, perform
from agent.polling.worker import Emit

SOON = 0.05
"""A read due within so many seconds runs now: a tick is never exactly on time."""


class ReadSchedule:
    """Reads that share one backend but no device that could be lost (the host's)."""

    def __init__(self, reads: Iterable[Read], clock: Clock, read_costs: ReadCosts) -> None:
        self.reads = tuple(reads)
        self._clock = clock
        self.read_costs = read_costs

    def run(self, emit: Emit) -> None:
        """One turn: every read that is due, in order."""
        now = self._clock.monotonic() + SOON
        for read in self.reads:
            if is_due(read, now):
                reading, _ = perform(read, self._clock, self.read_costs)
                if not is_pending(read, reading):
                    emit(reading)

    def complete(self) -> bool:
        """Whether every read has run at least once."""
        return all(read.runs for read in self.reads)
