"""Observers of the poller: one that fails, and one that is asked while it works."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from agent.model import Reading, ReadKey, Snapshot
from agent.polling.poller import Poller
from agent.polling.reads import ReadCosts
from agent.polling.worker import Guard
from agent.series import SampleStore
from agent.sources.agent_health import SOURCE_UP, reading
from tests.support.frozen_clock import FrozenClock
from tests.support.patience import PATIENCE


class FailingObserver:
    """A guarded observer that stumbles over every second tick."""

    def __init__(self) -> None:
        self.guard = Guard("failing")

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        return self.guard.run(lambda: self._take(snapshot), snapshot)

    def report(self, snapshot: Snapshot) -> Iterator[Reading]:
        yield self.guard.report(self._reading, snapshot)

    def _take(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.tick % 2:
            raise ZeroDivisionError("odd")
        return snapshot

    def _reading(self, snapshot: Snapshot) -> Reading:
        if snapshot.tick > 2:
            raise KeyError("late")
        return Reading(ReadKey("failing", "all"), snapshot.at, 1.0)


def test_an_observer_that_fails_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = FrozenClock()
    poller = Poller((), ReadCosts(), clock, observers=(FailingObserver(),), report_health=reading)
    up = []
    for _ in range(4):
        asyncio.run(poller.tick())
        up.append(SampleStore.of(poller.latest).value(SOURCE_UP, "failing"))
        clock.advance(1.0)
    assert up == [0, 1, 0, 0]
    assert [record.message.split()[0] for record in caplog.records] == [
        "event=observer_failed",
        "event=observer_recovered",
        "event=observer_failed",
        "event=observer_recovered",
    ]


class HalfwayObserver:
    """An observer that somebody on another thread asks while it takes in a tick."""

    def __init__(self) -> None:
        self.half = False
        self.asked = threading.Event()
        self.reports: list[bool] = []

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        self.half = True
        self.asked.set()
        time.sleep(0.05)  # for who asks now
        self.half = False
        return snapshot

    def report(self, snapshot: Snapshot) -> Iterator[Reading]:
        self.reports.append(self.half)
        yield Reading(ReadKey("halfway", "all"), snapshot.at, 1.0)


def test_who_asks_during_a_tick_gets_no_half_of_it() -> None:
    observer = HalfwayObserver()
    poller = Poller((), ReadCosts(), FrozenClock(), observers=(observer,), report_health=reading)

    def ask() -> None:
        assert observer.asked.wait(PATIENCE)
        ticks.append(poller.latest.tick)

    ticks: list[int] = []
    asking = threading.Thread(target=ask)
    asking.start()
    asyncio.run(poller.tick())
    asking.join()
    assert (ticks, observer.reports) == ([1], [False])
