"""Machines with a history: the last minutes run at once, and then the clock goes on."""

import asyncio
import time

from tests.stack.fleet import Member


class HistoryClock:
    """A clock that is moved by hand until `go` is called, and then runs as any other."""

    def __init__(self) -> None:
        self._passed = 0.0  # s
        self._since: float | None = None

    def monotonic(self) -> float:
        return self._passed + (0.0 if self._since is None else time.monotonic() - self._since)

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) if self._since is not None else 0.0)

    def meter(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()

    def offset(self) -> float | None:
        return 0.0

    def advance(self, seconds: float) -> None:
        self._passed += seconds

    def go(self) -> None:
        self._since = time.monotonic()


Phases = list[tuple[str, int]]
"""Scenarios, and for how many seconds each was played."""


def phases_of(text: str) -> Phases:
    """Of `training*200,starved-disk*40`; nothing of a lone scenario."""
    if "*" not in text:
        return []
    pairs = (part.split("*") for part in text.split(","))
    return [(scenario, int(seconds)) for scenario, seconds in pairs]


async def run_phases(one: Member, clock: HistoryClock, phases: Phases) -> None:
    """Tick through all acts without waiting; the last of them plays on when the clock goes."""
    for scenario, seconds in phases:
        one.machine.set_scenario(scenario)
        for _ in range(seconds):
            await one.agent.poller.tick()
            one.agent.watch.poll(0)
            clock.advance(1.0)
