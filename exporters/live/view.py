"""The part of the agent that the live page reads."""

from collections.abc import Callable
from dataclasses import dataclass

from agent import __version__
from agent.diagnosis.accounting import Diagnosis
from agent.faults.thresholds import AlertThresholds
from agent.jobs.job import WatchedJobs
from agent.model import ReadKey, Snapshot
from agent.series import SampleStore
from agent.specs.sheets import SystemSpec

CONNECTION = ReadKey("nvml", "connection")
"""The reading that every turn of the NVML worker yields: its age reports a driver that hangs."""

SILENT = 3.0
"""Seconds without a turn of the NVML worker after which the driver does not respond."""


@dataclass(frozen=True, slots=True)
class View:
    """Verdicts and data paths as they are kept every tick, and the costly whole on request."""

    diagnosis: Diagnosis
    samples: SampleStore  # of the last seconds; on the event loop alone
    latest: Callable[[], Snapshot]  # with health and reports: milliseconds, for any thread
    system: Callable[[], SystemSpec | None]
    uptime: Callable[[], float | None]  # of the host, s
    now: Callable[[], float]  # monotonic seconds, as those of the snapshots
    jobs: Callable[[], WatchedJobs] = WatchedJobs
    thresholds: Callable[[], AlertThresholds] = AlertThresholds  # of faults
    simulated: bool = False
    host: str = ""  # the name of the host that the agent runs on
    version: str = __version__


def silence(snapshot: Snapshot) -> float:
    """Seconds for which the driver has not responded; 0 while it does."""
    reading = snapshot.readings.get(CONNECTION)
    waited = snapshot.at - (reading.at if reading else 0.0)
    return waited if waited > SILENT else 0.0
