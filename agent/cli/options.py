"""Functions that several subcommands share. From the flags, they create settings, hardware, and
agents. They also handle stop signals."""

import argparse
import asyncio
import signal
from pathlib import Path
from socket import gethostname

from agent.cli.assembly import Agent, Hardware, real_hardware, simulated_hardware, taped_hardware
from agent.cli.driver_release import DriverConfig
from agent.clock import Clock, Stopwatch, SystemClock, TapeClock
from agent.config.configuration import DEFAULT_PATH, ConfigError, load
from agent.config.settings import Section, Settings
from agent.diagnosis.job_watch import CostConfig
from agent.diagnosis.thresholds import Thresholds
from agent.faults.thresholds import AlertPatches, AlertThresholds
from agent.hardware.processes import uptime
from agent.limits.resolution import LimitsConfig
from agent.model import Snapshot
from agent.polling import intervals
from agent.polling.worker import settle
from agent.service.journal import LogConfig
from agent.sources.allocation import AllocationConfig
from agent.sources.disk import DiskConfig
from agent.sources.network import NetworkConfig
from agent.sources.process import ProcessConfig
from agent.sources.table import SourcesConfig
from agent.sources.workload import JobConfig
from agent.specs.sheets import SaturationConfig, SpecConfig
from agent.status.build import StatusBoard
from agent.status.gpus import costly
from agent.status.model import Status
from agent.status.source import StatusSource
from alerts.receivers import Receivers
from exporters.settings import DcgmConfig, HttpConfig, MetricsConfig, NvlinkConfig

SECTIONS: tuple[type[Section], ...] = (
    *(HttpConfig, SpecConfig, LogConfig, ProcessConfig, JobConfig, DriverConfig, AllocationConfig),
    *(SourcesConfig, CostConfig, DiskConfig, NetworkConfig, NvlinkConfig, MetricsConfig),
    *(DcgmConfig, Thresholds, SaturationConfig, AlertThresholds, AlertPatches, Receivers),
    LimitsConfig,
)


def config_path(arguments: argparse.Namespace) -> Path | None:
    """Return the path in `--config`, or else the default path if this file exists, or None."""
    return arguments.config or (DEFAULT_PATH if DEFAULT_PATH.exists() else None)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Load the settings from the configuration file, the environment, and the flags. Raise
    ConfigError if the settings are invalid."""
    flags = {key: getattr(arguments, key, None) for key in ("listen", "web_config_file")}
    return load(SECTIONS, config_path(arguments), flags=flags)


def hardware_of(
    arguments: argparse.Namespace, clock: Clock, history: float = 0.0, kept: Path | None = None
) -> Hardware:
    """Return real, simulated, or recorded hardware, by the flags. For the rest, see `real_host`."""
    replay = getattr(arguments, "replay", None)
    if replay is not None and arguments.simulate is not None:
        raise ConfigError("--simulate and --replay exclude each other")
    if replay is not None:
        return taped_hardware(replay, clock)
    if arguments.simulate is not None:
        return simulated_hardware(arguments.simulate, clock)
    return real_hardware(history, kept)


def stop_signal(*also: signal.Signals) -> asyncio.Future[None]:
    """Return a future that completes on SIGTERM, SIGINT (Ctrl-C), or a signal in `also`. Further
    signals have no effect. Call this function in an event loop."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT, *also):
        loop.add_signal_handler(number, settle, asked)
    return asked


FIRST_READINGS_SECONDS = 30.0
"""Timeout in seconds for the first readings. Without persistence mode, the driver starts slowly."""


def local_agent(
    arguments: argparse.Namespace, settings: Settings, clock: SystemClock, history: float = 0.0
) -> tuple[Agent, Hardware, StatusBoard]:
    """Return a new agent for this machine, its hardware, and its status board. For a simulated
    machine, advance the clock until the scenario has begun."""
    hardware = hardware_of(arguments, clock, history)
    if hardware.simulated:
        clock.skip(30.0)  # s
    agent = Agent(settings, hardware, clock, inline=isinstance(clock, TapeClock))
    agent.watch.start()
    return agent, hardware, board_of(agent, hardware)


async def first_readings(agent: Agent, longest: float = FIRST_READINGS_SECONDS) -> None:
    """Run ticks until all reads have run, and at least one more, so that counters have rates. Stop
    after `longest` seconds without the time spent waiting for a CPU, and at the end of a recording,
    after which counters do not move. Return no snapshot: asyncio.run would format it, slowly."""
    # The rates of processes require two readings.
    poller, watch = agent.poller, Stopwatch(agent.clock)
    if isinstance(agent.clock, TapeClock):
        await poller.run(agent.finished)
    while poller.waiting_for() and watch.took < longest:
        await poller.tick()
        if poller.waiting_for():
            await agent.clock.sleep(intervals.TICK / 5)
    for read in agent.gpus.reads():  # also repeat reads that run less often
        if read.every() <= intervals.ENERGY:
            read.due = 0.0
    for again in range(13):  # while time is lost, until a job that waits counts as hung
        sound = all(costly(v.shares) is None for v in poller.latest.verdicts.values())
        if agent.finished() or (again and (sound or watch.took >= longest)):
            break
        await agent.clock.sleep(intervals.TICK)
        await poller.tick()
    agent.faults.observe(poller.latest)  # the first tick had few values


def first_look(
    arguments: argparse.Namespace,
    settings: Settings,
    history: float = 0.0,
    longest: float = FIRST_READINGS_SECONDS,
) -> tuple[Hardware, Snapshot, Status]:
    """Read this machine once, or a recording to its end. The status reports a late read as a fault
    immediately, as there is no later tick. Raise BadInput if the recording is cut short."""
    clock = SystemClock() if arguments.replay is None else TapeClock()
    agent, hardware, board = local_agent(arguments, settings, clock, history)
    agent.faults.waits = False
    asyncio.run(first_readings(agent, longest))
    return hardware, agent.poller.latest, board.status()


def board_of(agent: Agent, hardware: Hardware) -> StatusBoard:
    """Return a status board that is updated on each tick of the agent."""
    source = StatusSource(
        agent.diagnosis,
        agent.poller.samples,
        agent.faults,
        agent.look_for_faults,
        uptime=lambda: uptime(hardware.host.files),
        jobs=lambda: agent.jobs.current,
        simulated=hardware.simulated,
        playing=hardware.playing,
        host=gethostname(),
    )
    board = StatusBoard(source)
    agent.poller.listeners.append(board)
    return board
