"""A client of a running agent. It provides the agent's status to `once`, `watch`, and `check`."""

import argparse
import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent import __version__
from agent.config.configuration import ConfigError
from agent.config.settings import Settings
from agent.report.questions import NoAnswer, fetched, opened, place
from agent.specs.sheets import MachineSpecs
from agent.status.model import Status
from exporters.settings import HttpConfig

SILENCE_SECONDS = 10.0
"""An agent that sends no event for this many seconds counts as unresponsive. Normally, it sends an
event at least every 5 s."""

HASTE = 3.0
"""Timeout in seconds for each event until the first status has arrived."""

ONE_LOOK = "One look sees no rates of errors, and no time lost over minutes: a running agent does."

LONGEST_EVENT = 16 << 20
"""Maximum length in bytes of a line in the agent's event stream."""


@dataclass(slots=True)
class RunningAgent:
    """A running agent: its URL (`http://HOST:PORT`), and the first status that it sent."""

    url: str
    first: Status = field(init=False)

    @property
    def place(self) -> str:
        return place(self.url)

    def statuses(self, patience: float = SILENCE_SECONDS) -> Iterator[Status]:
        """Yield each status from the event stream, usually one per second. Raise NoAnswer if the
        agent stops responding or if its status cannot be decoded."""
        with opened(f"{self.url}/api/v1/stream", patience) as stream:
            if stream.headers.get_content_type() != "text/event-stream":
                raise NoAnswer(f"{self.place} is another program: it sends no stream of events")
            try:
                for name, content in _events(stream):
                    if name == "status":
                        yield msgspec.json.decode(content, type=Status)
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"{self.place} no longer responds: {error}") from error
            except Exception as error:  # the response can be anything
                why = f"does not respond as an agent of version {__version__} does: {error!r}"
                raise NoAnswer(f"{self.place} {why}") from error
        raise NoAnswer(f"{self.place} no longer responds: it has ended the stream")

    def snapshot(self) -> dict[str, Any]:
        """Return all values from `/api/v1/snapshot`. Raise NoAnswer if there is no response."""
        found: dict[str, Any] = fetched(f"{self.url}/api/v1/snapshot")
        return found


def _events(stream: http.client.HTTPResponse) -> Iterator[tuple[str, bytes]]:
    name = b""
    while raw := stream.readline(LONGEST_EVENT):
        if len(raw) == LONGEST_EVENT:
            raise ValueError(f"an event has more than {LONGEST_EVENT} bytes")
        word, _, value = raw.rstrip(b"\n").partition(b": ")
        if word == b"event":
            name = value
        elif word == b"data":
            yield name.decode(errors="replace"), value


def address_of(here: HttpConfig) -> str:
    """Return the URL of the agent on this machine. If the agent listens on all addresses, use the
    loopback address."""
    host, port = here.address
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def asked(arguments: argparse.Namespace, settings: Settings) -> tuple[RunningAgent | None, str]:
    """Return the agent to query. If the command must read this machine instead, return None and the
    reason. Raise NoAnswer if the agent in `--agent` does not respond, and ConfigError if the system
    is unknown or flags conflict."""
    MachineSpecs.of(settings, "")
    if arguments.simulate is not None or arguments.replay is not None:
        if arguments.agent:
            raise ConfigError("--agent excludes --simulate and --replay")
        return None, ""
    here = settings[HttpConfig]
    agent = RunningAgent((arguments.agent or address_of(here)).rstrip("/"))
    try:
        until = time.monotonic() + 2 * HASTE  # it may have just started
        first = (one for one in agent.statuses(HASTE) if one.sources or time.monotonic() > until)
        agent.first = next(first)
    except NoAnswer as error:
        if arguments.agent:
            raise
        why = f"No agent to ask, so this machine is read here, without its history: {error}"
        if here.web_config_file:
            why += " (with TLS or passwords: --agent https://USER:PASSWORD@NAME:PORT)"
        return None, why
    return agent, ""
