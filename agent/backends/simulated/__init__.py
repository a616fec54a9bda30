"""Simulated machines: every system that the agent supports, with drivers, jobs and faults.

A simulated machine refuses what the real one refuses. It keeps tables of its own and reads none
of the agent's specs: those are tested against it.
"""

from dataclasses import dataclass

from agent.backends.host import Host
from agent.backends.simulated import drivers, jobs, scenarios, systems
from agent.backends.simulated.files import SimulatedFiles
from agent.backends.simulated.host import SimulatedPsutil
from agent.backends.simulated.nvml import SimulatedNvml
from agent.backends.simulated.systems import System
from agent.backends.simulated.world import World
from agent.clock import Clock
from agent.refusal import BadInput

SYSTEMS: tuple[str, ...] = tuple(systems.ALL)
SCENARIOS: tuple[str, ...] = scenarios.NAMES

__all__ = ["SCENARIOS", "SYSTEMS", "Machine", "Simulation", "SimulationError", "build", "parse"]


class SimulationError(BadInput):
    """A machine that there cannot be; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What to simulate: a system, a full driver version, a scenario."""

    system: System
    driver: str
    scenario: str


class Machine:
    """A simulated machine: the seams of the agent, and the controls of tests."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nvml = SimulatedNvml(world)
        self.host = Host(
            files=SimulatedFiles(world),
            psutil=SimulatedPsutil(world),
            login=lambda uid: jobs.LOGIN if uid == jobs.USER else str(uid),
        )

    @property
    def scenario(self) -> str:
        """What plays now; the tour changes it."""
        self.world.advance()
        return self.world.scenario


def build(simulation: Simulation, clock: Clock) -> Machine:
    """Start a machine; its time is the clock's."""
    return Machine(World(simulation.system, simulation.driver, simulation.scenario, clock))


def parse(spec: str) -> Simulation:
    """Read `SYSTEM[@DRIVER][:SCENARIO]`; raises SimulationError for what cannot be."""
    machine, _, scenario = spec.partition(":")
    name, _, driver = machine.partition("@")
    system = _system(name)
    wanted = _driver(system, driver) if "@" in machine else system.driver
    return Simulation(system, wanted, _scenario(system, scenario if ":" in spec else "tour"))


def _system(name: str) -> System:
    if name not in systems.ALL:
        raise SimulationError(
            f"There is no simulated system {name!r}, expected one of {', '.join(SYSTEMS)}."
        )
    return systems.ALL[name]


def _driver(system: System, wanted: str) -> str:
    version = drivers.resolve(system, wanted)
    if not version:
        known = ", ".join(map(str, drivers.branches(system)))
        raise SimulationError(
            f"{system.name} cannot have the driver {wanted!r}, expected one of the branches "
            f"{known}, alone or as a full version like {system.driver}."
        )
    return version


def _scenario(system: System, name: str) -> str:
    if name not in SCENARIOS:
        raise SimulationError(
            f"There is no scenario {name!r}, expected one of "
            f"{', '.join(scenarios.possible(system))}."
        )
    missing = scenarios.missing(system, name)
    if missing:
        raise SimulationError(
            f"{system.name} cannot have the scenario {name!r}, which needs {missing}; it can have "
            f"{', '.join(scenarios.possible(system))}."
        )
    return name
