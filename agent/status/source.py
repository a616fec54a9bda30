"""The data from which the status is built."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.diagnosis.accounting import Diagnosis
from agent.faults.monitoring import NVML
from agent.faults.thresholds import AlertThresholds
from agent.faults.watch import FaultWatch
from agent.jobs.job import WatchedJobs
from agent.model import Snapshot
from agent.polling.gpu_state import GpuInventory
from agent.series import SampleStore


@dataclass(frozen=True, slots=True)
class StatusSource:
    """The latest accounts, data paths, jobs, and faults. Only the event loop may use them."""

    diagnosis: Diagnosis
    samples: SampleStore  # recent samples
    faults: FaultWatch
    look: Callable[[], None]  # checks the last tick for faults
    uptime: Callable[[], float | None]  # host uptime (s)
    jobs: Callable[[], WatchedJobs] = WatchedJobs
    simulated: bool = False
    playing: Callable[[float], str] = lambda _: ""  # the simulated scenario, or the recording
    host: str = ""  # hostname of the machine

    @property
    def inventory(self) -> GpuInventory:
        return self.diagnosis.inventory()

    @property
    def thresholds(self) -> AlertThresholds:
        return self.faults.configuration.current[AlertThresholds]


def silence(snapshot: Snapshot) -> float:
    """Return the seconds for which the driver has not responded, or 0 if it responds."""
    return snapshot.at - snapshot.turns.get(NVML, snapshot.at)
