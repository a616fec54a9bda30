"""The agent's clock, handed in, so that tests freeze it and simulations run it fast."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Time as the agent sees it."""

    def monotonic(self) -> float:
        """Seconds on the agent's clock, from an arbitrary origin; never steps back."""

    def time(self) -> float:
        """Wall time in seconds since the epoch; may step."""

    async def sleep(self, seconds: float) -> None:
        """Wait for so many of this clock's seconds."""

    def meter(self) -> tuple[float, float]:
        """Real seconds of wall time and of this thread's CPU time: to price what is done."""


class SystemClock:
    """The machine's clock, or one that runs `speed` times faster (`--simulate-speed`)."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._origin = time.monotonic()

    def monotonic(self) -> float:
        return (time.monotonic() - self._origin) * self.speed

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.speed)

    def skip(self, seconds: float) -> None:
        """Let so many seconds be over: a simulated machine has been running for a while."""
        self._origin -= seconds / self.speed

    def meter(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()


class FrozenClock:
    """A clock that moves only when told to."""

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

    def meter(self) -> tuple[float, float]:
        return 0.0, 0.0

    def advance(self, seconds: float) -> None:
        self._now += seconds
