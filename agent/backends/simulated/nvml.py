"""The simulated NVML: an object with pynvml's functions, constants, structs and errors."""

import inspect
from typing import Any

import pynvml

from agent.backends.simulated import events, gpm
from agent.backends.simulated.fields import Fields
from agent.backends.simulated.gate import Gate
from agent.backends.simulated.identity import Identity
from agent.backends.simulated.nvlink import NvLink
from agent.backends.simulated.telemetry import Telemetry
from agent.backends.simulated.world import World


class SimulatedNvml(Identity, Telemetry, Fields, NvLink, gpm.Gpm, events.Events):
    """What the agent takes for pynvml."""

    def __init__(self, world: World) -> None:
        super().__init__(Gate(world))
        self._next, self._next_set = gpm.SAMPLES, events.SETS
        self._forget()

    def nvmlInit(self) -> None:
        if self.gate.open():
            self._forget()

    def _forget(self) -> None:
        """What nobody gave back is gone with the driver, or with the last that used it."""
        self._samples, self._sets = {}, {}
        self.world.listeners.clear()

    def __getattr__(self, name: str) -> Any:
        """Constants, structs and errors are pynvml's own; its functions would ask a real driver."""
        found = getattr(pynvml, name, None)
        if found is None or inspect.isroutine(found):
            raise AttributeError(f"the simulated NVML has no {name}")
        return found
