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

    def offset(self) -> float | None:
        """Wall time less the real time since boot (s): it stays unless somebody sets the clock.
        None while the machine has just started, and is about to learn the time."""


STARTED = 600.0
"""Seconds after boot by which a machine has learned the time from the network."""


class SystemClock:
    """The machine's clock, or one that runs `speed` times faster (`--simulate-speed`)."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._began = self._origin = time.monotonic()

    def monotonic(self) -> float:
        return (time.monotonic() - self._origin) * self.speed

    def time(self) -> float:
        # A fast clock is ahead in both, or times of day contradict the durations beside them.
        return time.time() + (time.monotonic() - self._began) * (self.speed - 1.0)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.speed)

    def skip(self, seconds: float) -> None:
        """Let so many seconds be over: a simulated machine has been running for a while."""
        self._origin -= seconds / self.speed

    def meter(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()

    def offset(self) -> float | None:
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - since_boot if since_boot > STARTED else None
