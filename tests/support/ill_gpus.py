"""A simulated machine whose GPUs hang, fail and return while an agent reads it: which samples each
GPU got, and for how long it was unobserved."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

from agent import simulator as simulation
from agent.cli.assembly import Agent, Hardware
from agent.clock import ProcessorTime, SystemClock
from agent.config.settings import Settings
from agent.diagnosis.accounting import UNOBSERVED_SECONDS
from agent.model import Snapshot
from agent.polling import intervals
from agent.series import SampleStore
from agent.simulator.nvml import SimulatedNvml
from agent.sources import power

Step = Callable[[float], None]
"""Events on the machine at a tick, so many seconds after the start."""

LOOK = 0.001  # real s between two looks whether all threads wait
LEAST = 1e-6  # s that a sleep takes: what is too small to add would never be over


class SettledClock(SystemClock):
    """Time stands still while a thread works, and passes as soon as all wait: for their next turn,
    or for a call that hangs. What is lost is then lost by the agent, and not to a busy machine."""

    def __init__(self) -> None:
        super().__init__()
        self.settled: Callable[[], bool] = lambda: True
        self.short = 0.0  # share of the time in which this process had no processor
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._slept = 0

    def monotonic(self) -> float:
        return self._now

    def processor_time(self, age: float = 0.0) -> ProcessorTime:
        return ProcessorTime(self._now, {}, self.short * self._now)

    def offset(self) -> float | None:
        return None

    async def sleep(self, seconds: float) -> None:
        self._slept += 1
        woken = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self._now + max(LEAST, seconds), self._slept, woken))
        await woken

    async def run(self) -> None:
        """Pass, until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            if self._sleepers and self.settled():
                due, _, woken = heappop(self._sleepers)
                self._now = max(self._now, due)
                if not woken.done():
                    woken.set_result(None)


def hanging(driver: object, now: float) -> int:
    """Threads in a call of this driver that hangs. By name: what counts the lines that run puts new
    code into a function, and a frame that hangs keeps the old."""
    count = 0
    for frame in sys._current_frames().values():
        known = frame.f_locals
        if known.get("self") is driver:
            if frame.f_code.co_name == SimulatedNvml._wait.__name__:
                count += known["gpu"].slow > 0 and known.get("over", now) > now
            elif frame.f_code.co_name == SimulatedNvml._hang.__name__:
                count += known["self"].machine.driver.hung
    return count


class IllGpus:
    """The machine, its agent, and what was counted tick by tick once all was read."""

    def __init__(self, machine: str) -> None:
        self.clock = SettledClock()
        self._before = _threads()  # of other agents in this process
        self.machine: Any = simulation.SimulatedSystem(simulation.parse(machine), self.clock)
        hardware = Hardware(lambda: self.machine.nvml, self.machine.host, simulated=True)
        self.agent: Agent = Agent(Settings(), hardware, self.clock)
        self.ticks = 0
        self.samples: Counter[str] = Counter()  # by the number of the GPU
        self.threads = 0  # the most at a time that read GPUs
        self.clock.settled = self._settled
        self._turns: dict[str, asyncio.Future[None]] = {}
        for worker in self.agent.poller.workers:
            vars(worker)["start_turn"] = partial(self._start_turn, worker.name, worker.start_turn)
        self._seen: dict[str, float] = {}
        self._ends: list[asyncio.Task[None]] = []

    def run(self, seconds: float, step: Step = lambda _: None) -> "IllGpus":
        """Tick once a second of the clock for so long."""
        asyncio.run(self._run(seconds, step))
        return self

    async def _run(self, seconds: float, step: Step) -> None:
        running = (self._tick(seconds, step), self.clock.run())
        tasks = [asyncio.create_task(one) for one in running]
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        for task in done:
            task.result()

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

    def _start_turn(self, name: str, start: Callable[[], Any]) -> Any:
        self._turns[name] = start()
        return self._turns[name]

    def _settled(self) -> bool:
        """Return whether every thread waits for a turn or in a call that hangs."""
        workers, left = self.agent.poller.workers, self.agent.gpus.threads.left.values()
        busy = {worker.name for worker in workers if worker.busy}
        ended = all(turn.done() for name, turn in self._turns.items() if name not in busy)
        calls = len(busy) + sum(gpu.busy for gpu in left)
        return ended and calls == hanging(self.machine.nvml, self.clock.monotonic())

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
