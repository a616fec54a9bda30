"""Whole machines under a frozen clock: an agent that ticks when said to, and its scrape."""

import asyncio
import re
import weakref
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from msgspec.structs import replace

from agent import simulator as simulation
from agent.cli.assembly import Agent, Hardware, taped_hardware
from agent.config.settings import Settings
from agent.hardware.files import RealFiles
from agent.hardware.host import Host
from agent.jobs.job import WatchedJobs
from agent.model import Absence, Metric, Snapshot
from agent.series import SampleStore
from agent.simulator import models
from agent.specs.sheets import SpecConfig
from exporters.prometheus import Exposition
from exporters.settings import MetricsConfig
from tests.support.frozen_clock import FrozenClock

TEXT = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
FULL = MetricsConfig(set="full")
BUILD = re.compile(r"dgx_agent_build_info\{.*\} ")


def take_apart_at_end(holder: object, part: object) -> None:
    """Clear a part once nothing refers to its holder: its cycles would be garbage, and the search
    for garbage took a sixth of the CPU of all tests."""
    weakref.finalize(holder, vars(part).clear).atexit = False


@dataclass
class AgentBench:
    """An agent, the machine below it (None for a tape) and the clock of both."""

    agent: Agent
    clock: FrozenClock
    machine: Any = None
    hardware: Any = None  # as the agent has it

    def __post_init__(self) -> None:
        take_apart_at_end(self, self.agent)

    def run(self, seconds: int) -> "AgentBench":
        """Tick once a second."""
        asyncio.run(self._tick(seconds))
        return self

    def skip(self, seconds: float) -> "AgentBench":
        """Let time pass in which it does not tick: what is read seldom is due."""
        self.clock.advance(seconds)
        return self

    async def _tick(self, times: int) -> None:
        for _ in range(times):
            due = self.clock.monotonic() + 1.0
            await self.agent.poller.tick()
            self.agent.watch.poll(0)
            await self.agent.poller.look_again()
            self.clock.advance(due - self.clock.monotonic())

    @property
    def latest(self) -> Snapshot:
        return self.agent.poller.latest

    @property
    def jobs(self) -> WatchedJobs:
        return self.agent.jobs.current

    @property
    def samples(self) -> SampleStore:
        """The last tick's samples, with what observers make of them."""
        return SampleStore.of(self.latest)

    def absent(self, metric: Metric) -> list[Absence]:
        """The absences of a metric at the last tick."""
        latest = self.latest
        return [one for one in latest.absences(latest.at) if one.metric is metric]

    def scrape(self, accept: str = TEXT) -> str:
        """Return the exposition for Prometheus, without process metrics and versions of this
        machine."""
        text = self._exposition.page(accept).plain.decode()
        return BUILD.sub('dgx_agent_build_info{python="P",version="V"} ', text)

    @cached_property
    def _exposition(self) -> Exposition:
        return self.exposition()

    def exposition(self, config: MetricsConfig = FULL, *, per_link: bool = True) -> Exposition:
        agent = self.agent
        return Exposition(
            lambda: agent.poller.latest,
            self.clock.monotonic,
            process=False,
            selected=lambda: config,
            per_link=lambda: per_link,
        )


def simulated(name: str, config: Settings | None = None, gpus: int | None = None) -> AgentBench:
    """A simulated machine of `SYSTEM[@DRIVER][:SCENARIO]`. Of one with NVSwitches it has the first
    `gpus` alone, and misses none, for who would only see more of the same: each costs 3 ms a tick.
    The links of the others lead from GPU to GPU, and they are always whole."""
    clock, config = FrozenClock(), config or Settings()
    machine = simulation.SimulatedSystem(first_gpus(name, gpus), clock)
    if gpus:
        config = config.including(SpecConfig(gpus=len(machine.gpus)))
    bench = watched(machine, clock, config)
    take_apart_at_end(bench, machine)
    return bench


def watched(
    machine: Any, clock: FrozenClock, config: Settings | None = None, host: Host | None = None
) -> AgentBench:
    """An agent of a simulated machine, or of this host of it."""
    hardware = Hardware(lambda: machine.nvml, host or machine.host, simulated=True)
    agent = Agent(config or Settings(), hardware, clock, inline=True)
    return AgentBench(agent, clock, machine, hardware)


class Moment(NamedTuple):
    """A tick of a machine: what was read, and the jobs."""

    snapshot: Snapshot
    jobs: WatchedJobs

    @property
    def samples(self) -> SampleStore:
        return SampleStore.of(self.snapshot)


class Played:
    """A machine that only plays on, for all tests that read what it shows."""

    def __init__(self, name: str, gpus: int | None) -> None:
        self.bench = simulated(name, gpus=gpus)
        self._moments: list[Moment] = []

    def until(self, seconds: int) -> list[Moment]:
        """Its ticks up to then, one a second."""
        while len(self._moments) < seconds:
            bench = self.bench.run(1)
            self._moments.append(Moment(bench.latest, bench.jobs))
        return self._moments[:seconds]

    def at(self, seconds: int) -> Moment:
        return self.until(seconds)[-1]


def played(name: str, gpus: int | None = 2) -> Played:
    """The one machine of its name and size that is played in this process; read it only."""
    return _played(name, gpus if simulation.parse(name).system.switched else None)


_played = cache(Played)


def rack(gpus: int) -> models.SystemModel:
    """More GPUs than any system of the simulation has."""
    return replace(
        models.ALL["dgx-a100"],
        name={16: "sixteen"}.get(gpus, f"rack-{gpus}"),
        product=f"A machine of {gpus}",
        vendor="Somebody",
        buses=tuple(range(0x10, 0x10 + gpus)),
    )


RACKS = {rack(gpus).name: rack(gpus) for gpus in (16, 72)}


def first_gpus(name: str, count: int | None = None) -> simulation.Simulation:
    """The machine of a name, those of RACKS included, with its first GPUs alone where it has
    NVSwitches."""
    system, _, scenario = name.partition(":")
    if system in RACKS:
        return simulation.Simulation(RACKS[system], scenario)
    parsed = simulation.parse(name)
    buses = parsed.system.buses
    return replace(
        parsed,
        system=replace(parsed.system, buses=buses[:count] if parsed.system.switched else buses),
    )


def taped(path: Path) -> AgentBench:
    """A recorded machine."""
    clock = FrozenClock()
    return AgentBench(Agent(Settings(), taped_hardware(path, clock), clock, inline=True), clock)


def laptop(root: Path) -> AgentBench:
    """A machine without NVML: files below `root`, no disks, no driver."""
    clock = FrozenClock()
    host = Host(files=RealFiles(root), psutil=_Bare())
    hardware = Hardware(no_driver, host)
    agent = Agent(Settings(), hardware, clock, inline=True)
    return AgentBench(agent, clock, hardware=hardware)


def no_driver() -> Any:
    """A library that says that there is no driver."""
    return _NoDriver()


class _NoDriver:
    """pynvml where there is no driver."""

    def __init__(self) -> None:
        import pynvml

        self.NVMLError = pynvml.NVMLError
        self.NVMLLibraryMismatchError = pynvml.NVMLLibraryMismatchError

    def nvmlInit(self) -> None:  # noqa: N802
        raise self.NVMLError(12)


class _Bare:
    """psutil of a machine with nothing."""

    def disk_io_counters(self, perdisk: bool = True, nowrap: bool = False) -> dict[str, Any]:
        return {}

    def net_io_counters(self, pernic: bool = True, nowrap: bool = False) -> dict[str, Any]:
        return {}

    def cpu_times(self) -> Any:
        return SimpleNamespace(user=1.0, nice=0.0, system=1.0, idle=8.0, iowait=0.0, irq=0.0)
