"""A clock that moves only when said to."""

import asyncio

from agent.clock import ProcessorTime, ThreadTime


class FrozenClock:
    """A clock that moves only when said to."""

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch = epoch
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._epoch + self._now

    async def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def block(self, until: float) -> None:
        raise AssertionError("it would block forever")

    speed = 1.0
    late = 0.0  # s for which the process had no processor

    def processor_time(self, age: float = 0.0) -> ProcessorTime:
        return ProcessorTime(self._now, {0: ThreadTime(0.0, self.late, 0)}, self.late)

    def meter(self) -> tuple[float, float]:
        return 0.0, 0.0

    def offset(self) -> float | None:
        return self._epoch

    def step(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._epoch += seconds

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def starve(self, seconds: float) -> None:
        """Let time pass in which this process has no processor."""
        self._now += seconds
        self.late += seconds
