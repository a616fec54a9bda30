"""Player of scenarios: the current part of the current one, and the faults that are due; times in
seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from agent.simulator.loads import ScenarioLoad, parts_of
from agent.simulator.scenarios import SLOT, TOUR, Breakage, faults_of, parts, stops
from agent.simulator.system_models import SystemModel

SLACK = 1e-9  # s: a moment has come although floating point says that it just has not


@dataclass(slots=True)
class _Due:
    """Time at which a fault of the scenario strikes next."""

    fault: Breakage
    at: float


class ScenarioPlayer:
    """Goes through the parts of one scenario over and over, or through the tour's scenarios."""

    def __init__(self, system: SystemModel) -> None:
        self.scenario = ""
        self._system = system
        self._tour: Sequence[str] = ()
        self._stop = 0
        self._stop_ends = inf
        self._parts: Sequence[ScenarioLoad] = ()
        self._part = 0
        self._part_ends = inf
        self._due: list[_Due] = []
        self.next_change = inf  # When something happens next: a scenario, a part of it, a fault

    @property
    def load(self) -> ScenarioLoad:
        """Load that plays now."""
        return self._parts[self._part]

    def start(self, name: str, now: float) -> None:
        """Play a scenario, or the tour, from now on."""
        self._tour = stops(self._system) if name == TOUR else ()
        self._stop = 0
        self._stop_ends = now + SLOT if self._tour else inf
        self._play(self._tour[0] if self._tour else name, now)
        self._plan()

    def _play(self, name: str, now: float) -> None:
        self.scenario = name
        self._parts = parts_of(parts(name)[0])
        self._part = 0
        self._part_ends = now + self._parts[0].seconds
        self._due = [_Due(fault, now + fault.at) for fault in faults_of(name)]

    def _plan(self) -> None:
        self.next_change = min(self._stop_ends, self._part_ends, *(due.at for due in self._due))

    def next_scenario(self, now: float) -> bool:
        """Go on to the scenario of the tour that begins now; whether there is one."""
        if self._stop_ends > now + SLACK:
            return False
        self._stop = (self._stop + 1) % len(self._tour)
        self._play(self._tour[self._stop], self._stop_ends)
        self._stop_ends += SLOT
        self._plan()
        return True

    def next_part(self, now: float) -> bool:
        """Go on to the part of the scenario that begins now; whether there is one."""
        if self._part_ends > now + SLACK:
            return False
        self._part = (self._part + 1) % len(self._parts)
        self._part_ends += self._parts[self._part].seconds
        self._plan()
        return True

    def due(self, now: float) -> list[Breakage]:
        struck = [due for due in self._due if due.at <= now + SLACK]
        for due in struck:
            due.at = due.at + due.fault.every if due.fault.every else inf
        self._plan()
        return [due.fault for due in struck]
