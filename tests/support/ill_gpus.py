"""A simulated machine whose GPUs hang, fail and return while an agent reads it: which samples each
GPU got, and for how long it was unobserved."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from agent import simulator as simulation
from agent.cli.assembly import Agent, Hardware
from agent.clock import ProcessorTime, TapeClock
from agent.config.settings import Settings
from agent.diagnosis.accounting import UNOBSERVED_SECONDS
from agent.model import Snapshot
from agent.polling import intervals
from agent.series import SampleStore
from agent.sources import power

Step = Callable[[float], None]
"""Events on the machine at a tick, so many seconds after the start."""


class StarvedClock(TapeClock):
    """Time passes as soon as all threads wait: for their next turn, or for a call that hangs. What
    is lost is then lost by the agent, and not to a busy machine."""

    short = 0.0  # share of the time in which this process had no processor

    def processor_time(self, age: float = 0.0) -> ProcessorTime:
        return ProcessorTime(self.monotonic(), {}, self.short * self.monotonic())


class IllGpus:
    """The machine, its agent, and what was counted tick by tick once all was read."""

    def __init__(self, machine: str) -> None:
        self.clock = StarvedClock()
        self._before = _threads()  # of other agents in this process
        self.machine: Any = simulation.SimulatedSystem(simulation.parse(machine), self.clock)
        hardware = Hardware(lambda: self.machine.nvml, self.machine.host, simulated=True)
        self.agent: Agent = Agent(Settings(), hardware, self.clock)
        self.ticks = 0
        self.samples: Counter[str] = Counter()  # by the number of the GPU
        self.threads = 0  # the most at a time that read GPUs
        self._seen: dict[str, float] = {}
        self._ends: list[asyncio.Task[None]] = []

    def run(self, seconds: float, step: Step = lambda _: None) -> "IllGpus":
        """Tick once a second of the clock for so long."""
        asyncio.run(self._tick(seconds, step))
        return self

    async def _tick(self, seconds: float, step: Step) -> None:
        poller = self.agent.poller
        start = due = self.clock.monotonic()
        while self.clock.monotonic() - start < seconds:
            step(self.clock.monotonic() - start)
            await poller.tick()
            self._count(poller.latest)
            due = max(due + intervals.TICK, self.clock.monotonic())
            await self.clock.sleep(due - self.clock.monotonic())

    def _count(self, snapshot: Snapshot) -> None:
        if self.agent.poller.waiting_for():
            return
        self.ticks += 1
        for key, reading in snapshot.readings.items():
            for metric, (gpu, *_), _ in reading.samples if key.source == "power" else ():
                if metric is power.POWER and self._seen.get(gpu) != reading.at:
                    self._seen[gpu] = reading.at
                    self.samples[gpu] += 1
        self.threads = max(self.threads, _threads() - self._before)

    @property
    def values(self) -> SampleStore:
        return SampleStore.of(self.agent.poller.latest)

    def unobserved(self) -> dict[str, float]:
        """Seconds of each GPU of which the agent knows nothing, by its number."""
        return {gpu: value for (gpu, _), value in self.values.all(UNOBSERVED_SECONDS).items()}

    def short_of_processors(self, share: float) -> None:
        """Let this process be without a processor for this share of the time."""
        self.clock.short = share

    def slow(self, gpu: int, seconds: float) -> None:
        """Let each call of this GPU take so long, from the next one on."""
        self.machine.gpus[gpu].slow = seconds

    def hold_up(self, gpu: int, seconds: float) -> None:
        """From a step: let no call of this GPU return for so long."""

        async def end() -> None:
            await self.clock.sleep(seconds)
            self.slow(gpu, 0.0)

        self.slow(gpu, 2 * seconds)
        self._ends.append(asyncio.get_running_loop().create_task(end()))

    def lost(self, gpu: int) -> int:
        """Samples of a GPU that are missing."""
        return self.ticks - self.samples[str(gpu)]


def _threads() -> int:
    """Threads that read GPUs, or are left with one."""
    return sum(thread.name == "worker-nvml" for thread in threading.enumerate())
