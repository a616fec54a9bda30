"""The simulated NVML: an object with pynvml's functions, constants, structs and errors."""

import inspect
from typing import Any

import pynvml

from agent.simulator import events, gpm
from agent.simulator.call_guard import CallGuard
from agent.simulator.fields import SimulatedFields
from agent.simulator.machine import Machine
from agent.simulator.mig import SimulatedMig
from agent.simulator.nvlink import SimulatedNvLink


class SimulatedNvml(
    SimulatedMig,
    SimulatedFields,
    SimulatedNvLink,
    gpm.SimulatedGpm,
    events.SimulatedEvents,
):
    """What the agent takes for pynvml."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(CallGuard(machine))
        self._next, self._next_set = gpm.SAMPLES, events.SETS
        self._forget()

    def nvmlInit(self) -> None:
        if self.guard.open():
            self._forget()

    def held(self) -> tuple[int, int, int]:
        """What is open: connections, which keep the driver from being unloaded, event sets and GPM
        samples."""
        return self.guard.users, len(self._sets), len(self._samples)

    def _forget(self) -> None:
        """What no one gave back is gone with the driver, or with the last that used it."""
        self._samples, self._sets = {}, {}
        self.machine.driver.listeners.clear()

    def __getattr__(self, name: str) -> Any:
        """Constants, structs and errors are pynvml's own; its functions would ask a real driver."""
        found = getattr(pynvml, name, None)
        if found is None or inspect.isroutine(found):
            raise AttributeError(f"the simulated NVML has no {name}")
        return found
