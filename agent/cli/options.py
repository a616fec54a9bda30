"""From flags to an agent: what all subcommands share."""

import argparse
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
