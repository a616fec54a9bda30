"""NCCL's own report on the jobs of this host, asked only where `job.nccl` says so, on a thread of
its own, seldom, and in memory for everyone else.

An answer may take seconds: a worker of the poller that waited for it would pass for one that
hangs, and the tick would wait with it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from agent.clock import Clock
from agent.errors import LogEvent
from agent.hardware.nccl_answer import REASONS, RasFailure
from agent.hardware.nccl_guard import KNOWN_FAULTS
from agent.hardware.nccl_ras import RanksReader
from agent.jobs.collectives import NcclReading
from agent.jobs.nccl_exchange import NcclExchange, NcclReport
from agent.jobs.nccl_jobs import NcclHistory, NcclMode, RasSchedule, UnmatchedJob, match
from agent.model import GPU_LABELS, Absent, Labels, ReadKey, Reason, counter
from agent.polling import intervals
from agent.polling.reads import Read, ReadCost, ReadOutput, fixed

log = logging.getLogger(__name__)

COLLECTIVES = counter(
    "dgx_gpu_collectives_total",
    "Collectives that the process on this GPU has launched since its job began, of all kinds and "
    "communicators, as NCCL reports; only of jobs on several GPUs, and only where job.nccl is on.",
    "NCCL's RAS service on localhost:28028 (NCCL 2.30 or newer)",
    GPU_LABELS,
)

REPORTS = ", ".join(f"{row.report} ({'.'.join(map(str, row.last))})" for row in KNOWN_FAULTS)
"""Public reports that asking ended a job, each with its version of NCCL."""

SOURCE = "nccl"
PAUSE = 1.0
"""Seconds between two looks at whether to ask."""

HOLDS = 100.0
"""Seconds for which an answer says something of now: three rounds, and what one may take. Why there
is none holds until the next round."""


class NcclPoller:
    """Asks when it is time; `poll` blocks for seconds and belongs on the thread of `start`.

    `mode` is asked each time: a reload may change it. `inline` polls on the caller's thread, for
    tests.
    """

    def __init__(
        self,
        reader: RanksReader,
        clock: Clock,
        mode: Callable[[], NcclMode],
        *,
        inline: bool = False,
        exchange: NcclExchange | None = None,
    ) -> None:
        self.exchange = exchange or NcclExchange()  # with who follows the jobs
        self._reader = reader
        self._clock = clock
        self._mode = mode
        self._schedule = RasSchedule()
        self._history = NcclHistory()
        self._failing = False
        self.inline = inline
        self.wall = self.cpu = 0.0  # seconds that all rounds have cost

    def start(self) -> None:
        """Ask for ever, on a daemon thread: a socket that never ends must not hold up the exit."""
        threading.Thread(target=self._run, name="nccl", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self.poll()
                self._failing = False
            except Exception:  # the jobs are watched all the same
                if not self._failing:
                    log.exception(LogEvent("nccl_failed"))
                self._failing = True
            time.sleep(PAUSE / max(1.0, getattr(self._clock, "speed", 1.0)))

    def poll(self) -> None:
        """Ask if it is time."""
        exchange, now = self.exchange, self._clock.monotonic()
        mode, all_jobs = self._mode(), exchange.jobs
        if mode is NcclMode.OFF:
            exchange.latest = NcclReport()
            return
        request = self._schedule.due(now, mode, all_jobs)
        if request is None:
            return
        jobs = [job for job in all_jobs if job.pids.keys() & set(request.wanted)]
        ras = self._reader.read(request)
        self._schedule.asked(now, ras)
        self.wall, self.cpu = self.wall + ras.seconds, self.cpu + ras.cpu
        at = self._clock.monotonic()
        self._history.add(at, ras.answers)
        found = match(jobs, ras)
        exchange.latest = NcclReport(
            at,
            {key: self._history.readings(answer) for key, answer in found.matched.items()},
            ras.believed,
            {job.key: job for job in found.unmatched},
        )


class NcclCounts:
    """What was reported, as samples of each GPU whose process NCCL names; on the event loop.

    `cost` is where the price of asking is kept, which another thread pays.
    """

    def __init__(self, watch: NcclPoller, cost: ReadCost) -> None:
        self._exchange = watch.exchange
        self._watch = watch
        self._cost = cost
        self._paid = (0.0, 0.0)

    def read(self, out: ReadOutput) -> None:
        """The counts, or why there are none, of each GPU of the jobs that are asked for."""
        if self._watch.inline:
            self._watch.poll()
        self._pay()
        latest = self._exchange.latest
        for job in self._exchange.jobs:
            gpus = {pid: self._exchange.gpus[pid] for pid in job.pids if pid in self._exchange.gpus}
            unheard, readings = latest.unheard.get(job.key), latest.readings.get(job.key)
            if unheard is not None:
                for one in sorted(set(gpus.values())):
                    out.absent(COLLECTIVES, reason(unheard), *one)
            elif readings and out.at - latest.at <= HOLDS:
                gpus = {job.pids[p]: one for p, one in gpus.items() if p in latest.believed}
                for one, count in sorted(_counts(readings[-1], gpus).items()):
                    out.add(COLLECTIVES, count, *one)

    def _pay(self) -> None:
        paid = self._watch.wall, self._watch.cpu
        self._cost.wall += paid[0] - self._paid[0]
        self._cost.cpu += paid[1] - self._paid[1]
        self._paid = paid


def reason(job: UnmatchedJob) -> Absent:
    """Why nothing of a job was reported, as the agent says it."""
    why = REASONS[job.reason] if isinstance(job.reason, RasFailure) else Reason.UNKNOWN
    return Absent(why, f"{job.reason.value}: {job.detail}")


def _counts(reading: NcclReading, gpus: Mapping[int, Labels]) -> dict[Labels, int]:
    found: dict[Labels, int] = {}
    for communicator in reading.answer.communicators:
        for rank in communicator.ranks:
            labels = gpus.get(rank.pid or 0)
            if labels is not None:
                found[labels] = found.get(labels, 0) + sum(rank.counts.values())
    return found


def reads(counts: NcclCounts) -> Iterator[Read]:
    """One read for all GPUs: what was reported is in memory."""
    yield Read(ReadKey(SOURCE, "ranks"), (COLLECTIVES,), counts.read, fixed(intervals.TICK))
