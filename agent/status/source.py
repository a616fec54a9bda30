"""The parts of the agent that make the status."""

from collections.abc import Callable
from dataclasses import dataclass, field

from agent import __version__
from agent.diagnosis.accounting import Diagnosis
from agent.faults.thresholds import AlertThresholds
from agent.faults.watch import FaultWatch
from agent.jobs.job import WatchedJobs
from agent.model import ReadKey, Snapshot
from agent.polling.gpu_state import GpuInventory
from agent.series import SampleStore
from agent.specs.sheets import SystemSpec

CONNECTION = ReadKey("nvml", "connection")
"""The reading that every turn of the NVML worker yields: its age reports a driver that hangs."""

NO_TURN = 3.0
"""Seconds without a turn of the NVML worker after which the driver does not respond."""


@dataclass(frozen=True, slots=True)
class StatusSource:
    """Accounts, data paths, jobs and faults as the tick left them; for the event loop alone."""

    diagnosis: Diagnosis
    samples: SampleStore  # of the last seconds
    faults: FaultWatch
    look: Callable[[], None]  # for faults, at the last tick
    system: Callable[[], SystemSpec | None]
    uptime: Callable[[], float | None]  # of the host, s
    jobs: Callable[[], WatchedJobs] = WatchedJobs
    thresholds: Callable[[], AlertThresholds] = AlertThresholds
    simulated: bool = False
    playing: Callable[[float], str] = lambda _: ""  # the scenario of a simulated machine
    host: str = ""  # the name of the host that the agent runs on
    version: str = field(default=__version__)

    @property
    def inventory(self) -> GpuInventory:
        return self.diagnosis.inventory()


def silence(snapshot: Snapshot) -> float:
    """Return the seconds for which the driver has not responded; 0 while it does."""
    reading = snapshot.readings.get(CONNECTION)
    waited = snapshot.at - (reading.at if reading else 0.0)
    return waited if waited > NO_TURN else 0.0
