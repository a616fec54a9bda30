"""How often the wall clock was set while the agent ran."""

from agent.clock import Clock

LEAST = 1.0
"""Seconds that make a step: a time service slews what is less, by half a millisecond a second."""


class ClockSteps:
    """Looks at the clock each tick."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before: float | None = None
        self.count = 0
        self.at: float | None = None  # of the newest, monotonic seconds

    def check(self) -> None:
        """Count a step since the last look."""
        now = self._clock.offset()
        if now is not None and self._before is not None and abs(now - self._before) >= LEAST:
            self.count += 1
            self.at = self._clock.monotonic()
        self._before = now
