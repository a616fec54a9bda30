"""Observers: they take every tick's snapshot, and report when they are asked."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from agent.errors import LogEvent
from agent.model import Failure, Reading, ReadKey, Snapshot
from agent.polling import intervals
from agent.polling.reads import failure_of
from agent.series import SampleStore

log = logging.getLogger(__name__)

T = TypeVar("T")


class Observer(Protocol):
    """Somebody who understands what was read."""

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        """Take in a tick: everything that is known, and the samples of the last seconds; the
        snapshot with what it adds to it."""

    def report(self, snapshot: Snapshot) -> Reading:
        """Return the reading derived from a snapshot."""


@dataclass(slots=True, eq=False)
class GuardedObserver:
    """An observer whose mistakes cost itself alone: the agent goes on, its source is down."""

    source: str
    observer: Observer
    failure: Failure | None = None

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        """Let it take in a tick; where it fails the snapshot is as it was."""
        seen, failure = self._tried(lambda: self.observer.observe(snapshot, samples))
        self._log_change(failure)
        return seen or snapshot

    def report(self, snapshot: Snapshot) -> Reading:
        """Return the reading derived from a snapshot; after a failure, only the failure."""
        reading, failure = self._tried(lambda: self.observer.report(snapshot))
        if reading is None:
            key = ReadKey(self.source, "report")
            return Reading(key, snapshot.at, intervals.TICK, failure=failure)
        return replace(reading, failure=self.failure) if self.failure else reading

    def _tried(self, ask: Callable[[], T]) -> tuple[T | None, Failure | None]:
        try:
            return ask(), None
        except Exception as error:  # a bug or a surprise of the hardware must not end the agent
            return None, failure_of(error)

    def _log_change(self, failure: Failure | None) -> None:
        if failure and not self.failure:
            log.error(LogEvent("observer_failed", source=self.source, error=str(failure)))
        elif self.failure and not failure:
            log.info(LogEvent("observer_recovered", source=self.source))
        self.failure = failure
