"""Simulates every system that the agent supports, with its drivers, jobs, and faults.

A simulated machine refuses the same NVML calls as the real machine. The simulator does not use the
agent's spec sheets, because tests compare the simulator's values with the sheets.
"""

from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import replace

from agent.clock import Clock
from agent.errors import BadInput
from agent.hardware.host import Host
from agent.simulator import driver, jobs, loads, models, scenarios
from agent.simulator.host import SimulatedFiles, SimulatedPsutil, SimulatedSlurm
from agent.simulator.machine import Machine
from agent.simulator.nvml import SimulatedNvml

SYSTEMS: tuple[str, ...] = tuple(models.ALL)
SCENARIOS: tuple[str, ...] = scenarios.NAMES
FAULTS: tuple[str, ...] = (*scenarios.FAULTS, "xid-CODE")
"""Names of single faults. In a scenario, plus signs join them, as in `training+ecc-rising`."""


class Simulation(Struct, frozen=True):
    """A parsed argument of `--simulate`: a system, a full driver version, and a scenario."""

    system: models.SystemModel
    scenario: str


class SimulatedSystem(Machine):
    """A simulated machine. The agent uses its two interfaces: an NVML library and a host."""

    def __init__(self, simulation: Simulation, clock: Clock) -> None:
        super().__init__(simulation.system, simulation.scenario, clock)
        self.nvml = SimulatedNvml(self)
        self.host = Host(
            files=SimulatedFiles(self),
            psutil=SimulatedPsutil(self),
            kernel_log=self.kernel_log,
            login=lambda uid: jobs.LOGIN if uid == jobs.USER else str(uid),
            schedulers=SimulatedSlurm(self),
        )
        self.scenario_given = simulation.scenario

    def playing(self, at: float) -> str:
        """Return the name of the scenario at clock time `at` (s). In a tour, add the next one."""
        return scenarios.playing(self.system, self.scenario_given, at - self.began)


def parse(spec: str) -> Simulation:
    """Parse `SYSTEM[@DRIVER][:SCENARIO]`. Raise BadInput if the machine cannot exist."""
    machine, _, scenario = spec.partition(":")
    name, _, branch = machine.partition("@")
    if name not in models.ALL:
        raise BadInput(
            f"There is no simulated system {name!r}, expected one of {', '.join(SYSTEMS)}."
        )
    system = models.ALL[name]
    wanted = driver.resolve(system, branch) if "@" in machine else system.driver
    if not wanted:
        known = ", ".join(map(str, driver.branches(system)))
        raise BadInput(
            f"{system.name} cannot have the driver {branch!r}, expected one of the branches "
            f"{known}, alone or as a full version like {system.driver}."
        )
    driven = replace(system, driver=wanted)  # a scenario may need a newer driver
    return Simulation(driven, _scenario(driven, scenario if ":" in spec else "tour"))


def _scenario(system: models.SystemModel, name: str) -> str:
    if not scenarios.parts(name):
        wrong = next((part for part in name.split("+") if not scenarios.parts(part)), name)
        near = get_close_matches(wrong, (*scenarios.possible(system), *FAULTS), 2)
        hint = f"is it {' or '.join(near)}?" if near else "--help lists all, and all faults."
        raise BadInput(f"There is no scenario {wrong!r}: {hint}")
    if loaded := [part for part in name.split("+")[1:] if part in loads.PARTS]:
        why = f"{loaded[0]!r} has its own load, so it can only come first"
        raise BadInput(f"There is no scenario {name!r}: {why}.")
    missing = scenarios.missing(system, name)
    if missing:
        raise BadInput(
            f"{system.name} cannot have the scenario {name!r}, which needs {missing}; it can have "
            f"{', '.join(scenarios.possible(system))}."
        )
    return name
