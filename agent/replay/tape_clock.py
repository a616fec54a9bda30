"""Position of a replay on the tape."""

import threading

from agent.clock import Clock, SystemClock

AHEAD = 250
"""Milliseconds by which a replay in real time runs ahead of the tape.

The ticks of recording and replay start equally late after the first question, but for some
jitter: without this, a tick would find now the frame of its own time, now the one before.
"""


class TapeClock:
    """Milliseconds since the first question, which may be asked from several threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._ahead = AHEAD if isinstance(clock, SystemClock) else 0
        self._lock = threading.Lock()
        self._start: float | None = None

    def now(self) -> int:
        """Return the position on the tape; time runs from the first call."""
        now = self.clock.monotonic()
        with self._lock:
            if self._start is None:
                self._start = now
            return round((now - self._start) * 1000) + self._ahead

    def passed(self, seconds: float) -> bool:
        """Return whether so many seconds have been played."""
        return self._start is not None and self.now() - self._ahead > round(seconds * 1000)
