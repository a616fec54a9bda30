"""Client for a running agent, whose status is streamed to `once`, `watch`, and `check`."""

import argparse
import http.client
import time
from array import array
from base64 import b64decode
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import msgspec

from agent import __version__
from agent.config.configuration import ConfigError
from agent.config.settings import Settings
from agent.report.questions import NoAnswer, fetched, opened, place
from agent.specs.sheets import MachineSpecs
from agent.status.history import History
from agent.status.model import Status
from exporters.settings import HttpConfig

SILENCE_SECONDS = 10.0
"""Seconds without an event after which an agent is considered unresponsive. An agent normally sends
an event at least every 5 s."""

HASTE = 3.0
"""Timeout in seconds for each event before the first status has arrived."""

ONE_LOOK = "One look sees no rates of errors, and no time lost over minutes: a running agent does."

LONGEST_EVENT = 16 << 20
"""Maximum length in bytes of a line in the agent's event stream."""

SPAN = 900
"""Length in seconds of the activity history, which has one value per second."""

LEVELS = " ▁▂▃▄▅▆▇█"
"""Characters for the activity of a GPU: unknown, and then each eighth."""


@dataclass(slots=True)
class Recent:
    """Activity (0-1) of each GPU over the last 15 minutes, with one value per second, which is None
    in gaps."""

    rings: dict[str, deque[float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, history: History) -> "Recent":
        """Return the activity from the history of this process."""
        found = cls()
        found.take_history(history.document())
        return found

    def take(self, status: Status) -> None:
        for gpu in status.gpus:
            ring = self.rings.setdefault(gpu.uuid, deque(maxlen=SPAN))
            ring.append(gpu.figures.activity_ratio)

    def take_history(self, history: dict[str, Any]) -> None:
        """Add the history received from an agent. A whole history replaces the previous values; a
        partial history is appended."""
        series = history["series"]["activity"]
        for uuid, kept in history["gpus"].items():
            codes = array("B" if series["bytes"] == 1 else "H", b64decode(kept["activity"]))
            values = (None if c == series["gap"] else c * series["scale"] for c in codes)
            if history["whole"]:
                self.rings[uuid] = deque(maxlen=SPAN)
            self.rings.setdefault(uuid, deque(maxlen=SPAN)).extend(values)

    def line(self, uuid: str, columns: int) -> str:
        """Return the 15-minute history as a string of `columns` characters, oldest first. Each
        character is the mean of an equal part of the history."""
        values = [*self.rings.get(uuid, ())]
        values = [*[None] * (SPAN - len(values)), *values]
        parts = [values[n * SPAN // columns : (n + 1) * SPAN // columns] for n in range(columns)]
        known = ([v for v in part if v is not None] for part in parts)
        levels = (1 + min(7, int(8 * fmean(part))) if part else 0 for part in known)
        return "".join(LEVELS[level] for level in levels)


class _Agent(msgspec.Struct):
    version: str


class _Versioned(msgspec.Struct):
    """Decodes only the version of a status, so that the status of an older agent can be decoded."""

    machine: _Agent


@dataclass(slots=True)
class RunningAgent:
    """A running agent with its URL (`http://HOST:PORT`) and the first status received from it."""

    url: str
    recent: Recent = field(default_factory=Recent)
    first: Status = field(init=False)

    @property
    def place(self) -> str:
        return place(self.url)

    def statuses(self, patience: float = SILENCE_SECONDS) -> Iterator[Status]:
        """Yield each status from the event stream, usually one per second. Raise NoAnswer if the
        agent stops responding or if its version is different."""
        with opened(f"{self.url}/api/v1/stream", patience) as stream:
            try:
                for name, content in _events(stream):
                    if name == "history":
                        self.recent.take_history(msgspec.json.decode(content))
                    elif name in ("status", "machine"):
                        version = msgspec.json.decode(content, type=_Versioned).machine.version
                        if version != __version__:
                            why = f"is of version {version}, not {__version__}"
                            raise NoAnswer(f"{self.place} {why}")  # noqa: TRY301
                    if name == "status":
                        status = msgspec.json.decode(content, type=Status)
                        self.recent.take(status)
                        yield status
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"{self.place} does not answer any more: {error}") from error
            except NoAnswer:
                raise
            except Exception as error:  # the response can be anything
                why = f"does not answer as an agent does: {error!r}"
                raise NoAnswer(f"{self.place} {why}") from error
        raise NoAnswer(f"{self.place} does not answer any more: it has ended the stream")

    def snapshot(self) -> dict[str, Any]:
        """Return all values from `/api/v1/snapshot`. Raise NoAnswer if the agent does not
        respond."""
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
    """Return the agent to query. If this machine is read instead, return None and the reason. Raise
    NoAnswer if the agent given by `--agent` does not respond, and ConfigError if the system is
    unknown or flags conflict."""
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
