"""An agent and a load side by side, and what they say of the same seconds."""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from agent.cli.assembly import Agent, Hardware, real_hardware
from agent.clock import Clock, SystemClock
from agent.config.settings import Settings
from agent.model import Metric, ReadKey, Snapshot
from tests.support.repository import ROOT

TORCH_PYTHON = os.environ.get("DGX_TORCH_PYTHON", sys.executable)
"""The interpreter that has PyTorch: seldom that of the agent, which has its own environment."""


class MachineClock(SystemClock):
    """The agent's clock with the machine's own origin, so that it compares with the loads'."""

    def monotonic(self) -> float:
        return time.monotonic()


class Point(NamedTuple):
    """A counter at one moment (CLOCK_MONOTONIC, s)."""

    at: float
    value: float


class Load:
    """A load in a process group of its own; `lines` grows with what it prints."""

    def __init__(self, kind: str, seconds: float) -> None:
        # what its libraries leave in the temporary directory goes with it; on the disk, not in
        # memory: one of the loads reads a file of its own there
        above = os.environ.get("TMPDIR") or ROOT
        self._room = tempfile.TemporaryDirectory(prefix=".load-", dir=above)
        self.process = subprocess.Popen(
            [TORCH_PYTHON, "-m", "tests.hardware.loads", kind, str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "TMPDIR": self._room.name},
        )
        self.lines: list[dict[str, float]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def wait_started(self, lines: int = 3, timeout: float = 90.0) -> None:
        """Wait until the load has done a few pieces; raises RuntimeError if it never does."""
        end = time.monotonic() + timeout
        while len(self.lines) < lines:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the load did not start: {self.process.args!r}")
            time.sleep(0.05)

    def rate(self, start: float, end: float) -> float:
        """Bytes per second that the load moved between two moments."""
        points = [Point(line["at"], line["bytes"]) for line in list(self.lines)]
        return slope([p for p in points if start <= p.at <= end])

    def stop(self) -> None:
        """End the load with everything below it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._room.cleanup()


def slope(points: list[Point]) -> float:
    """Units per second between the first and the last point."""
    first, last = points[0], points[-1]
    return (last.value - first.value) / (last.at - first.at)


class Watcher:
    """An agent in this process, ticking, whose every reading is kept with its time."""

    def __init__(
        self,
        hardware: Hardware | None = None,
        config: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`clock` is given for a simulated machine: it moves only when the watcher sleeps."""
        self.clock: Clock = clock or MachineClock()
        # No thread of its own: two agents that watch one load take turns in the driver. Side by
        # side they ended in a double free below NVML.
        self.agent: Agent = Agent(
            config or Settings(), hardware or real_hardware(), self.clock, inline=True
        )
        weakref.finalize(self, vars(self.agent).clear).atexit = False  # see AgentBench
        self.snapshots: list[Snapshot] = []  # one a tick
        self.series: dict[tuple[str, tuple[str, ...]], list[Point]] = {}
        self._last: dict[ReadKey, float] = {}

    def ticks(self, seconds: float) -> None:
        """Tick for so many seconds and keep every new reading."""
        asyncio.run(self._ticks(seconds))

    async def _ticks(self, seconds: float) -> None:
        due = self.clock.monotonic()
        end = due + seconds
        while self.clock.monotonic() < end:
            await self.tick()
            due += 1.0
            await self.clock.sleep(max(0.0, due - self.clock.monotonic()))

    async def tick(self) -> None:
        """Tick once, keep what was read, and look again."""
        await self.agent.poller.tick()
        self._keep()
        await self.agent.poller.look_again()

    def _keep(self) -> None:
        self.snapshots.append(self.agent.poller.latest)
        for key, reading in self.snapshots[-1].readings.items():
            if self._last.get(key) == reading.at:
                continue
            self._last[key] = reading.at
            for metric, labels, value in reading.samples:
                self.series.setdefault((metric.name, labels), []).append(Point(reading.at, value))

    def points(self, metric: Metric, gpu: str, *labels: str) -> list[Point]:
        """Every reading of one series of one GPU."""
        for (name, key), points in self.series.items():
            if name == metric.name and key[0] == gpu and key[2:] == labels:
                return points
        return []

    def mean(self, metric: Metric, gpu: str, since: float, until: float) -> float:
        """Mean of a gauge over an interval."""
        kept = [p.value for p in self.points(metric, gpu) if since <= p.at <= until]
        return statistics.fmean(kept)

    def rate(self, metric: Metric, gpu: str, since: float, until: float) -> float:
        """Units per second of a counter over the readings within an interval."""
        return slope([p for p in self.points(metric, gpu) if since <= p.at <= until])


@contextmanager
def running(kind: str, seconds: float) -> Iterator[Load]:
    """A load that has started, and is gone afterwards."""
    load = Load(kind, seconds)
    try:
        load.wait_started()
        yield load
    finally:
        load.stop()


class Figure(NamedTuple):
    """One thing measured and the bound it must keep."""

    name: str
    value: float
    least: float
    most: float
    unit: str
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        verdict = "ok  " if self.holds else "OFF "
        bounds = f"[{self.least:g}, {self.most:g}]"
        return f"{verdict} {self.name}: {self.value:.5g} {self.unit} in {bounds} {self.note}"
