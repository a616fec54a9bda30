"""A client of a running agent. It provides the agent's status to `once`, `watch`, and `check`."""

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent import __version__
from agent.config.configuration import ConfigError
from agent.config.settings import Settings
from agent.polling.intervals import TICK
from agent.report.questions import ANSWER_SECONDS, NoAnswer, fetched, place
from agent.specs.sheets import MachineSpecs
from agent.status.model import Status
from exporters.settings import HttpConfig

HASTE = 3.0
"""Timeout in seconds for the first status request of a command."""

ONE_LOOK = "One look sees no rates of errors, and no time lost over minutes: a running agent does."


@dataclass(slots=True)
class RunningAgent:
    """A running agent: its URL (`http://HOST:PORT`), and the first status that it sent."""

    url: str
    first: Status = field(init=False)

    @property
    def place(self) -> str:
        return place(self.url)

    def status(self, timeout: float = ANSWER_SECONDS) -> Status:
        """Return the current status. Raise NoAnswer if the agent does not respond within `timeout`
        seconds, or if its status cannot be decoded."""
        found = fetched(f"{self.url}/api/v1/status", timeout)
        try:
            return msgspec.convert(found, Status)
        except msgspec.ValidationError as error:
            why = f"does not respond as an agent of version {__version__} does: {error}"
            raise NoAnswer(f"{self.place} {why}") from error

    def snapshot(self) -> dict[str, Any]:
        """Return the document of `/api/v1/snapshot`. Raise NoAnswer if there is no response."""
        found: dict[str, Any] = fetched(f"{self.url}/api/v1/snapshot")
        return found


def address_of(here: HttpConfig) -> str:
    """Return the URL of this machine's agent: at loopback if the agent listens on all addresses."""
    host, port = here.address
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def asked(arguments: argparse.Namespace, settings: Settings) -> tuple[RunningAgent | None, str]:
    """Return the agent to query, or None and the reason if the command must read this machine
    itself. Raise NoAnswer if the agent in `--agent` does not respond. Raise ConfigError if flags
    conflict or the system is unknown."""
    MachineSpecs.of(settings, "")
    if arguments.simulate is not None or arguments.replay is not None:
        if arguments.agent:
            raise ConfigError("--agent excludes --simulate and --replay")
        return None, ""
    here = settings[HttpConfig]
    agent = RunningAgent((arguments.agent or address_of(here)).rstrip("/"))
    try:
        until = time.monotonic() + 2 * HASTE  # it may have just started
        while not (first := agent.status(HASTE)).sources and time.monotonic() < until:
            time.sleep(TICK / 5)
        agent.first = first
    except NoAnswer as error:
        if arguments.agent:
            raise
        why = f"No agent to ask, so this machine is read here, without its history: {error}"
        if here.web_config_file:
            why += " (with TLS or passwords: --agent https://USER:PASSWORD@NAME:PORT)"
        return None, f"{why}."
    return agent, ""
