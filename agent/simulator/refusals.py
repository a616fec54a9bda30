"""Refusals of a real machine: return codes of NVML, and their conditions."""

from typing import NamedTuple

from agent.simulator.driver import Driver
from agent.simulator.gpu_models import AMPERE, BLACKWELL, MAXWELL, VOLTA, GpuModel

ANSWERED, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 2, 3
UNINITIALIZED, NO_PERMISSION, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND = 1, 4, 6, 10, 13
GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 15, 25, 999

LINK_SLOTS = 18
"""Links that the driver's tables have room for; beyond, a link number is an invalid argument."""


class Question(NamedTuple):
    """Condition of a call: the object asked and its state, which decide whether a function or a
    field is answered."""

    model: GpuModel
    driver: Driver
    mig: bool = False

    @property
    def arch(self) -> int:
        return self.model.architecture

    @property
    def linked(self) -> bool:
        return self.model.links is not None

    @property
    def linked_by_5(self) -> bool:
        return self.linked and self.arch >= BLACKWELL

    @property
    def counts_nvlink(self) -> bool:
        """Payload. Drivers after 460 refuse it on GPUs without a GSP processor."""
        return self.linked and (self.arch >= AMPERE or self.driver < (465,))

    @property
    def remaps(self) -> bool:
        return self.model.remaps and not self.mig

    @property
    def retires(self) -> bool:
        return self.model.ecc and self.arch <= VOLTA

    @property
    def measures_slot(self) -> bool:
        return self.arch >= MAXWELL and self.model.slot and not self.mig

    def whole(self, architecture: int) -> bool:
        return self.arch >= architecture and not self.mig

    def link_code(self, link: int) -> int:
        count = self.model.links.number if self.model.links else 0
        if 0 <= link < count:
            return ANSWERED
        return NOT_SUPPORTED if 0 <= link < LINK_SLOTS else INVALID_ARGUMENT
