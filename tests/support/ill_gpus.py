"""A simulated machine on a clock that runs, whose GPUs hang, fail and return while an agent reads
it: which samples each GPU got, and for how long it was unobserved."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from agent import simulator as simulation
from agent.cli.assembly import Agent, Hardware, build_agent
from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.diagnosis.accounting import UNOBSERVED_SECONDS
from agent.model import Snapshot
from agent.polling import intervals
from agent.series import SampleStore
from agent.sources import power

Step = Callable[[float], None]
"""What happens to the machine at a tick, so many seconds after the start."""


class IllGpus:
    """The machine, its agent, and what was counted tick by tick once all was read."""

    def __init__(self, machine: str, speed: float = 1.0) -> None:
        self.clock = SystemClock(speed)
        self._before = _threads()  # of other agents in this process
        self.machine: Any = simulation.build(simulation.parse(machine), self.clock)
        hardware = Hardware(lambda: self.machine.nvml, self.machine.host, simulated=True)
        self.agent: Agent = build_agent(Settings(), hardware, self.clock)
        self.ticks = 0
        self.samples: Counter[str] = Counter()  # by the number of the GPU
        self.threads = 0  # the most at a time that read GPUs
        self._seen: dict[str, float] = {}

    def run(self, seconds: float, step: Step = lambda _: None) -> "IllGpus":
        """Tick once a second of the clock for so long."""
        asyncio.run(self._run(seconds, step))
        return self

    async def _run(self, seconds: float, step: Step) -> None:
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

    def slow(self, gpu: int, seconds: float) -> None:
        """Let each call of this GPU take so long, from the next one on."""
        self.machine.gpus[gpu].slow = seconds

    def lost(self, gpu: int) -> int:
        """Samples of a GPU that are missing."""
        return self.ticks - self.samples[str(gpu)]


def _threads() -> int:
    """Threads that read GPUs, or are left with one."""
    return sum(thread.name == "worker-nvml" for thread in threading.enumerate())
