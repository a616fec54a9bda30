"""Who makes sense of what was read: fed each tick, asked when somebody looks."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from agent import beats
from agent.model import Reading, ReadKey, Snapshot
from agent.reads import described

log = logging.getLogger(__name__)

T = TypeVar("T")


class Observer(Protocol):
    """Somebody who understands what was read."""

    def observe(self, snapshot: Snapshot, fresh: Sequence[Reading]) -> None:
        """Take in a tick: everything that is known, and what was read since the last one."""

    def report(self, snapshot: Snapshot) -> Reading:
        """What it makes of it."""


@dataclass(slots=True, eq=False)
class Guarded:
    """An observer whose mistakes cost itself alone: the agent goes on, its source is down."""

    source: str
    observer: Observer
    failure: str = ""

    def observe(self, snapshot: Snapshot, fresh: Sequence[Reading]) -> None:
        """Let it take in a tick."""
        self._tell(self._tried(lambda: self.observer.observe(snapshot, fresh))[1])

    def report(self, snapshot: Snapshot) -> Reading:
        """What it makes of it; nothing but the failure where it fails."""
        reading, failure = self._tried(lambda: self.observer.report(snapshot))
        if reading is None:
            key = ReadKey(self.source, "report")
            return Reading(key, snapshot.at, beats.TICK, failure=failure)
        return replace(reading, failure=self.failure) if self.failure else reading

    def _tried(self, ask: Callable[[], T]) -> tuple[T | None, str]:
        try:
            return ask(), ""
        except Exception as error:  # a bug or a surprise of the hardware must not end the agent
            return None, described(error)

    def _tell(self, failure: str) -> None:
        """Log a change of state."""
        if failure and not self.failure:
            log.error('event=observer_failed source=%s error="%s"', self.source, failure)
        elif self.failure and not failure:
            log.info("event=observer_recovered source=%s", self.source)
        self.failure = failure
