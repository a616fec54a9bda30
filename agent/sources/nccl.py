"""NCCL's own word on the jobs of this host, asked on a thread of its own, seldom, and in memory
for everyone else.

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
from agent.hardware.nccl_ras import RanksReader
from agent.jobs.collectives import NcclReading
from agent.jobs.nccl_exchange import NcclExchange, NcclReport
from agent.jobs.nccl_jobs import NcclHistory, RasSchedule, UnmatchedJob, match
from agent.model import GPU_LABELS, Absent, Labels, ReadKey, Reason, counter
from agent.polling import intervals
from agent.polling.reads import Read, ReadCost, ReadOutput, fixed

log = logging.getLogger(__name__)

COLLECTIVES = counter(
    "dgx_gpu_collectives_total",
    "Collectives that the process on this GPU has launched since its job began, of all kinds and "
    "communicators, as NCCL reports every 30 s (every 5 s while a hang is suspected); only of jobs "
    "on several GPUs.",
    "NCCL's RAS service on localhost:28028 (NCCL 2.24 or newer)",
    GPU_LABELS,
)

SOURCE = "nccl"
PAUSE = 1.0
"""Seconds between two looks at whether to ask."""

HOLDS = 100.0
"""Seconds for which an answer says something of now: three rounds, and what one may take. Why there
is none holds until somebody asks again."""


class NcclPoller:
    """Asks when it is time; `poll` blocks for seconds and belongs on the thread of `start`.

    `enabled` is asked each time: a reload may switch it. `inline` polls on the caller's thread,
    for tests.
    """

    def __init__(
        self,
        reader: RanksReader,
        clock: Clock,
        enabled: Callable[[], bool],
        *,
        inline: bool = False,
        exchange: NcclExchange | None = None,
    ) -> None:
        self.exchange = exchange or NcclExchange()  # with who follows the jobs
        self._reader = reader
        self._clock = clock
        self._enabled = enabled
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
        self._schedule.enabled = self._enabled()
        if not self._schedule.enabled:
            exchange.latest = NcclReport()
            return
        jobs = self._schedule.worth_asking(exchange.jobs)
        if not self._schedule.due(now, jobs, suspected=exchange.suspected):
            return
        ras = self._reader.read({pid for job in jobs for pid in job.pids})
        self._schedule.asked(now, ras)
        self.wall, self.cpu = self.wall + ras.seconds, self.cpu + ras.cpu
        at = self._clock.monotonic()
        self._history.add(at, ras.answers)
        found = match(jobs, ras)
        exchange.latest = NcclReport(
            at,
            {key: self._history.readings(answer) for key, answer in found.matched.items()},
            {job.key: job for job in found.unmatched},
        )


class NcclCounts:
    """What was told, as samples of each GPU whose process NCCL names; on the event loop.

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
            gpus = self._exchange.gpus.get(job.key, {})
            unheard, readings = latest.unheard.get(job.key), latest.readings.get(job.key)
            if unheard is not None:
                for one in sorted(set(gpus.values())):
                    out.absent(COLLECTIVES, reason(unheard), *one)
            elif readings and out.at - latest.at <= HOLDS:
                for one, count in sorted(_counts(readings[-1], gpus).items()):
                    out.add(COLLECTIVES, count, *one)

    def _pay(self) -> None:
        paid = self._watch.wall, self._watch.cpu
        self._cost.wall += paid[0] - self._paid[0]
        self._cost.cpu += paid[1] - self._paid[1]
        self._paid = paid


def reason(job: UnmatchedJob) -> Absent:
    """Why a job was not told of, as the agent says it."""
    why = REASONS[job.reason] if isinstance(job.reason, RasFailure) else Reason.UNKNOWN
    return Absent(why, f"{job.reason.value}: {job.detail}")


def _counts(reading: NcclReading, gpus: Mapping[int, Labels]) -> dict[Labels, int]:
    found: dict[Labels, int] = {}
    if not reading.answer.lists_all:
        return found
    for communicator in reading.answer.communicators:
        for rank in communicator.ranks:
            labels = gpus.get(rank.pid or 0)
            if labels is not None:
                found[labels] = found.get(labels, 0) + sum(rank.counts.values())
    return found


def reads(counts: NcclCounts) -> Iterator[Read]:
    """One read for all GPUs: what was told is in memory."""
    yield Read(ReadKey(SOURCE, "ranks"), (COLLECTIVES,), counts.read, fixed(intervals.TICK))
