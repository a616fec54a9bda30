"""From flags to an agent, and when it is asked to end: what all subcommands share."""

import argparse
import asyncio
import signal
from pathlib import Path

from agent.cli.assembly import Hardware, real_hardware, simulated_hardware, taped_hardware
from agent.cli.sections import SECTIONS
from agent.clock import Clock
from agent.config.configuration import DEFAULT_PATH, ConfigError, load
from agent.config.settings import Settings


def config_path(arguments: argparse.Namespace) -> Path | None:
    """The file that was named, else the default one where it exists."""
    named: Path | None = arguments.config
    if named is None and DEFAULT_PATH.exists():
        return DEFAULT_PATH
    return named


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings from file, environment and flags; raises ConfigError."""
    flags = {
        "listen": getattr(arguments, "listen", None),
        "web_config_file": getattr(arguments, "web_config_file", None),
        "log.level": getattr(arguments, "log_level", None),
        "log.format": getattr(arguments, "log_format", None),
    }
    return load(SECTIONS, config_path(arguments), flags=flags)


def hardware_of(arguments: argparse.Namespace, clock: Clock, history: float = 0.0) -> Hardware:
    """Real, simulated or taped, as the flags say; `history` is how many seconds of a real
    kernel's log are read first."""
    replay = getattr(arguments, "replay", None)
    if replay is not None and arguments.simulate is not None:
        raise ConfigError("--simulate and --replay exclude each other")
    if replay is not None:
        return taped_hardware(replay, clock)
    if arguments.simulate is not None:
        return simulated_hardware(arguments.simulate, clock)
    return real_hardware(history)


def stop_signal(*also: signal.Signals) -> asyncio.Future[None]:
    """Done once SIGTERM or SIGINT (Ctrl-C) has come; a second one changes nothing. Needs a running
    loop."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not asked.done():
            asked.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT, *also):
        loop.add_signal_handler(number, end)
    return asked
