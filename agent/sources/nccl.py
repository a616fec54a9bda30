"""NCCL's own report on the jobs of this host, asked only where `job.nccl` says so, on a thread of
its own, seldom, and in memory for everyone else.

An answer may take seconds: a worker of the poller that waited for it would pass for one that
hangs, and the tick would wait with it.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.errors import LogEvent
from agent.hardware.nccl import RanksReader
from agent.hardware.nccl_guard import KNOWN_FAULTS
from agent.jobs.nccl_jobs import (
    NcclExchange,
    NcclHistory,
    NcclMode,
    NcclReport,
    RasSchedule,
    counted,
    match,
)
from agent.model import GpuMetric, Labels, ReadKey
from agent.polling import intervals
from agent.polling.reads import Read, ReadCosts, ReadOutput, fixed

log = logging.getLogger(__name__)

COLLECTIVES = GpuMetric.counter(
    "dgx_gpu_collectives_total",
    "Collectives that the process on this GPU has launched since its job began, of all kinds and "
    "communicators, as NCCL reports; only for jobs on several GPUs, and only if job.nccl is on.",
    "NCCL's RAS service on localhost:28028 (NCCL 2.30 or newer)",
)

REPORTS = ", ".join(f"{row.report} ({'.'.join(map(str, row.last))})" for row in KNOWN_FAULTS)
"""Public reports that asking ended a job, each with its version of NCCL."""

SOURCE = "nccl"
PAUSE = 1.0  # Seconds between two looks at whether to ask
HOLDS = 100.0
"""Seconds for which an answer says something of now: three rounds, and what one may take. Why there
is none holds until the next round."""


@dataclass(slots=True)
class NcclPoller:
    """Asks when it is time; `poll` blocks for seconds and belongs on the thread of `start`.

    `mode` is asked each time: a reload may change it. `inline` polls on the caller's thread, for
    tests. `costs` has what asking costs.
    """

    reader: RanksReader
    clock: Clock
    mode: Callable[[], NcclMode]
    inline: bool = field(default=False, kw_only=True)
    exchange: NcclExchange = field(default_factory=NcclExchange)  # with who follows the jobs
    costs: ReadCosts = field(default_factory=ReadCosts)
    _schedule: RasSchedule = field(default_factory=RasSchedule)
    _history: NcclHistory = field(default_factory=NcclHistory)

    def start(self) -> None:
        """Ask for ever, on a daemon thread: a socket that never ends must not hold up the exit."""
        threading.Thread(target=self._run, name="nccl", daemon=True).start()

    def _run(self) -> None:
        failing = False
        while True:
            try:
                self.poll()
                failing = False
            except Exception:  # the jobs are watched all the same
                if not failing:
                    log.exception(LogEvent("nccl_failed"))
                failing = True
            time.sleep(PAUSE / max(1.0, getattr(self.clock, "speed", 1.0)))

    def poll(self) -> None:
        exchange, now = self.exchange, self.clock.monotonic()
        mode, all_jobs = self.mode(), exchange.jobs
        if mode is NcclMode.OFF:
            exchange.latest = NcclReport()
            return
        request = self._schedule.due(now, mode, all_jobs)
        if request is None:
            return
        ras = self.reader.read(request)
        self._schedule.asked(now, ras)
        self.costs.add(SOURCE, ras.seconds, ras.cpu)
        at = self.clock.monotonic()
        self._history.add(at, ras.answers)
        asked = [job for job in all_jobs if job.pids.keys() & set(request.wanted)]
        own, without = match(asked, ras)
        readings = {key: self._history.readings(answer) for key, answer in own.items()}
        exchange.latest = NcclReport(at, readings, ras.believed, without)

    def read(self, out: ReadOutput) -> None:
        """On the event loop: the counts of each GPU whose process NCCL names, or why there are
        none, of the jobs that are asked for."""
        if self.inline:
            self.poll()
        latest, exchange = self.exchange.latest, self.exchange
        for job in exchange.jobs:
            gpus = {pid: exchange.gpus[pid] for pid in job.pids if pid in exchange.gpus}
            readings = latest.readings.get(job.key)
            if (unheard := latest.unheard.get(job.key)) is not None:
                for one in sorted(set(gpus.values())):
                    out.absent(COLLECTIVES, unheard, *one)
            elif readings and out.at - latest.at <= HOLDS:
                counts, of_gpu = counted(readings[-1]), Counter[Labels]()
                for pid, one in gpus.items():
                    if pid in latest.believed and job.pids[pid] in counts:
                        of_gpu[one] += counts[job.pids[pid]]
                for one, count in sorted(of_gpu.items()):
                    out.add(COLLECTIVES, count, *one)


def reads(poller: NcclPoller) -> Iterator[Read]:
    yield Read(ReadKey(SOURCE, "ranks"), (COLLECTIVES,), poller.read, fixed(intervals.TICK))
