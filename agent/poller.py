"""The poller: once a tick it starts the lanes, gathers what they finished, publishes a snapshot."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from agent import beats, health
from agent.clock import Clock
from agent.lane import Finished, Lane
from agent.model import Reading, ReadKey, Snapshot
from agent.observers import Observer
from agent.reads import Ledger

log = logging.getLogger(__name__)

PATIENCE = 0.8
"""Share of the tick for which the poller waits for its lanes before it publishes without them."""

NUMBER = re.compile(r"0x[0-9a-f]+|\d+")

STALL = 5.0
"""A turn of a lane that takes longer (s) counts as stalled: its sources are down."""


Listener = Callable[[Snapshot], None]
"""Hears of every tick, on the event loop and so in no time, with what was read; what observers make
of it, and the agent's health, are in `Poller.latest`."""


@dataclass(slots=True, eq=False)
class Poller:
    """Keeps the newest reading of every read, and publishes all of them once a tick."""

    lanes: Sequence[Lane]
    ledgers: Sequence[Ledger]
    clock: Clock
    observers: Sequence[Observer] = ()
    config_ok: Callable[[], bool] = lambda: True
    listeners: list[Listener] = field(default_factory=list)
    _data: Snapshot = field(default_factory=lambda: Snapshot(0, 0.0, 0.0))
    _whole: Snapshot = field(default_factory=lambda: Snapshot(-1, 0.0, 0.0))
    _stuck: frozenset[str] = frozenset()  # lanes whose call hangs
    _stalled: frozenset[str] = frozenset()  # those, and their sources
    _readings: dict[ReadKey, Reading] = field(default_factory=dict)
    _lane_of: dict[str, Lane] = field(default_factory=dict)
    _ready: bool = False
    _deaf: list[Listener] = field(default_factory=list)  # listeners that failed at the last tick

    @property
    def stuck(self) -> frozenset[str]:
        """Names of the lanes whose call hangs."""
        return self._stuck

    @property
    def latest(self) -> Snapshot:
        """The last tick's snapshot with the agent's own health.

        Health is put together when somebody looks: most ticks nobody does. Any thread may ask.
        """
        data, whole = self._data, self._whole
        if whole.tick != data.tick:
            whole = self._whole = self._with_health(data)
        return whole

    async def run(self) -> None:
        """Tick for ever, each second of the clock; ticks that were missed are not made up for."""
        due = self.clock.monotonic()
        while True:
            await self.tick()
            now = self.clock.monotonic()
            due = max(due + beats.TICK, now)
            await self.clock.sleep(due - now)

    async def tick(self) -> None:
        """Start every lane that is free, wait a while, publish what there is."""
        turns = [lane.begin() for lane in self.lanes]
        await self._wait(turns)
        fresh = []
        for lane in self.lanes:
            for finished in lane.finished():
                self._take(finished, lane)
                if isinstance(finished, Reading):
                    fresh.append(finished)
        self._publish()
        for observer in self.observers:
            observer.observe(self._data, fresh)
        for listener in self.listeners:
            self._tell_of_tick(listener)

    def waiting_for(self) -> str:
        """What has not been read once yet; empty when the agent is ready.

        A lane that hangs is not waited for: the rest is worth serving, and an alert tells of it.
        """
        now = self.clock.monotonic()
        waited = [
            lane.name
            for lane in self.lanes
            if not (self._ready or lane.complete() or lane.stalled_for(now) > STALL)
        ]
        self._ready = self._data.tick > 0 and not waited
        return "" if self._ready else "the first readings of " + ", ".join(waited or ["all"])

    async def _wait(self, turns: list[asyncio.Future[None]]) -> None:
        if all(turn.done() for turn in turns):
            return
        patience = asyncio.ensure_future(self.clock.sleep(PATIENCE * beats.TICK))
        patience.add_done_callback(partial(_give_up, turns))
        await asyncio.gather(*turns, return_exceptions=True)
        patience.cancel()

    def _tell_of_tick(self, listener: Listener) -> None:
        """What a listener stumbles over must not end the agent; told once until it hears again."""
        try:
            listener(self._data)
        except Exception:
            if listener not in self._deaf:
                log.exception("event=listener_failed listener=%s", type(listener).__name__)
                self._deaf.append(listener)
        else:
            if listener in self._deaf:
                self._deaf.remove(listener)

    def _take(self, finished: Finished, lane: Lane) -> None:
        if isinstance(finished, ReadKey):
            self._readings.pop(finished, None)
            return
        self._lane_of[finished.key.source] = lane
        before = self._readings.get(finished.key)
        self._readings[finished.key] = finished
        _tell(finished, "" if before is None else before.failure)

    def _publish(self) -> None:
        now = self.clock.monotonic()
        stuck = frozenset(lane.name for lane in self.lanes if lane.stalled_for(now) > STALL)
        _tell_stuck(stuck, self._stuck)
        self._stuck = stuck
        sources = (source for source, lane in self._lane_of.items() if lane.name in stuck)
        self._stalled = stuck.union(sources)
        tick = self._data.tick + 1
        self._data = Snapshot(tick, now, self.clock.time(), dict(self._readings))

    def _with_health(self, data: Snapshot) -> Snapshot:
        understood = {r.key: r for r in (observer.report(data) for observer in self.observers)}
        readings = {**data.readings, **understood}
        up = health.sources_up(readings, self._stalled)
        out = health.report(Snapshot(data.tick, data.at, data.wall, readings), up, self.ledgers)
        out.add(health.CONFIG_OK, self.config_ok())
        readings[health.HEALTH] = Reading(health.HEALTH, data.at, beats.TICK, tuple(out.samples))
        return Snapshot(data.tick, data.at, data.wall, readings)


def _give_up(turns: Sequence[asyncio.Future[None]], _: asyncio.Future[None]) -> None:
    """Wait no longer for turns that hang; their lanes go on, and hand over what they finish."""
    for turn in turns:
        if not turn.done():
            turn.set_result(None)


def _tell_stuck(stuck: frozenset[str], before: frozenset[str]) -> None:
    """Log a lane whose call begins to hang, or returns at last."""
    for name in sorted(stuck - before):
        log.error("event=lane_stalled lane=%s seconds=%g", name, STALL)
    for name in sorted(before - stuck):
        log.info("event=lane_recovered lane=%s", name)


def _tell(reading: Reading, before: str) -> None:
    """Log a read that begins or ceases to fail, or fails in another way: state changes, not
    states. Numbers in a message (addresses, process ids) make no other way."""
    if NUMBER.sub("", reading.failure) == NUMBER.sub("", before):
        return
    where = "source=%s part=%s device=%s"
    if reading.failure:
        log.error(f'event=read_failed {where} error="%s"', *reading.key, reading.failure)
    else:
        log.info(f"event=read_recovered {where}", *reading.key)
