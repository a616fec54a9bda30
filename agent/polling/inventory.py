"""Inventory of the GPUs and the driver at one moment, for every thread to read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.hardware.nvml import Nvml
from agent.model import GpuIdentity, Reason


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The GPUs that were found; replaced whole, never changed."""

    generation: int = 0  # grows with each connection to the driver, and with each GPU found again
    driver_version: str = ""
    nvml_version: str = ""
    gpus: tuple[GpuIdentity, ...] = ()
    lost: Mapping[str, float] = field(default_factory=dict)  # since when (s), by UUID
    not_answering: Mapping[str, str] = field(default_factory=dict)  # in what words, by UUID
    unmet: int = 0  # GPUs whose calls hang since the start, so that they are not known
    most: int = 0  # the most GPUs that answered since the agent started
    reason: Reason = Reason.STALLED  # why there is no driver, ...
    why_not: str = "the driver has not answered yet"  # ... and in words; empty while connected

    @property
    def connected(self) -> bool:
        return not self.why_not

    @property
    def answering(self) -> int:
        return len(self.gpus) - len(self.lost)


@dataclass(frozen=True, slots=True)
class EventSubscription:
    """The GPUs whose events can be waited for; another generation means: subscribe again."""

    generation: int
    nvml: Nvml
    handles: dict[str, Any]  # NVML's device handles by UUID
