"""Runners of loads: on the GPUs of this machine, or on a simulated one that checks the judging."""

import os
from typing import Any, Protocol

from agent import simulator
from agent.cli.assembly import Hardware, real_hardware
from agent.clock import Clock
from tests.hardware.bench import Load, MachineClock, slope
from tests.hardware.bench import Point as Done
from tests.hardware.trials import Trial
from tests.support.frozen_clock import FrozenClock

SPARE = 60.0
"""Seconds that a load lasts beyond its trial, so that it never ends within."""


class RunningLoad(Protocol):
    """A load that plays, or is about to."""

    @property
    def steady(self) -> float | None:
        """When its steady phase began (clock's s); None where it has not yet."""

    @property
    def ended(self) -> bool:
        """Whether it is over, which it should not be."""

    def images(self, since: float, until: float) -> float | None:
        """Images a second, where it counts any."""

    def stop(self) -> None:
        """End it."""


class LoadRunner(Protocol):
    """Where loads play."""

    clock: Clock
    frozen: Clock | None  # where time moves only when told to

    def hardware(self) -> Hardware:
        """What an agent watches."""

    def lacks(self, trial: Trial) -> str:
        """Why this trial cannot be played here; empty where it can."""

    def prepare(self, trial: Trial) -> None:
        """Soon this one is to begin."""

    def begin(self, trial: Trial) -> RunningLoad:
        """Begin it now."""

    def clear(self) -> None:
        """End what was prepared and never began."""


class NoLoad:
    """No load: the state of affairs since it began."""

    def __init__(self, since: float) -> None:
        self.steady: float | None = since
        self.ended = False

    def images(self, since: float, until: float) -> float | None:
        return None

    def stop(self) -> None:
        return None


class LoadProcess:
    """A load of tests.hardware.labelled."""

    def __init__(self, load: Load) -> None:
        self._load = load

    @property
    def steady(self) -> float | None:
        return next((line["at"] for line in list(self._load.lines) if "steady" in line), None)

    @property
    def ended(self) -> bool:
        return self._load.ended

    def images(self, since: float, until: float) -> float | None:
        lines = [line for line in list(self._load.lines) if "images" in line]
        done = [Done(o["at"], o["images"]) for o in lines if since <= o["at"] <= until]
        return slope(done) if len(done) > 1 else None

    def stop(self) -> None:
        self._load.stop()


class RealLoads:
    """This machine. What is prepared imports its libraries and waits."""

    def __init__(self) -> None:
        self.clock: Clock = MachineClock()
        self.frozen: Clock | None = None
        self._prepared: dict[str, Load] = {}

    def hardware(self) -> Hardware:
        return real_hardware()

    def lacks(self, trial: Trial) -> str:
        return ""

    def prepare(self, trial: Trial) -> None:
        if trial.words and trial.name not in self._prepared:
            kind, *rest = trial.words
            words = (*rest, "--standby")
            load = Load(kind, trial.seconds + SPARE, *words, module="labelled")
            self._prepared[trial.name] = load

    def begin(self, trial: Trial) -> RunningLoad:
        if not trial.words:
            return NoLoad(self.clock.monotonic())
        self.prepare(trial)
        load = self._prepared.pop(trial.name)
        load.go()
        return LoadProcess(load)

    def clear(self) -> None:
        while self._prepared:
            self._prepared.popitem()[1].stop()


class SimulatedLoads:
    """A simulated machine under a clock that moves only when an agent sleeps."""

    def __init__(self, system: str) -> None:
        self.frozen: Clock | None = FrozenClock()
        self.clock: Clock = self.frozen
        self.machine: Any = simulator.build(simulator.parse(f"{system}:idle"), self.frozen)

    def hardware(self) -> Hardware:
        return Hardware(lambda: self.machine.nvml, self.machine.host, simulated=True)

    def lacks(self, trial: Trial) -> str:
        return "" if trial.scenario else "no scenario is like it"

    def prepare(self, trial: Trial) -> None:
        return None

    def begin(self, trial: Trial) -> RunningLoad:
        self.machine.set_scenario(trial.scenario)
        return NoLoad(self.clock.monotonic())

    def clear(self) -> None:
        self.machine.set_scenario("idle")


def runner() -> LoadRunner:
    """DGX_TRIALS_ON names a simulated system that takes the place of this machine."""
    system = os.environ.get("DGX_TRIALS_ON")
    return SimulatedLoads(system) if system else RealLoads()
