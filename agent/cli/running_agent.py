"""The agent that runs already: its frames, which `once` and `watch` show as its live page does."""

import argparse
import http.client
import json
from array import array
from base64 import b64decode
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from agent import __version__
from agent.config.settings import Settings
from agent.report.questions import NoAnswer, fetched, opened, place
from exporters.live.page_state import whole
from exporters.messages import Document
from exporters.settings import HttpConfig

PATIENCE = 10.0
"""Seconds without an event after which the agent does not answer: it sends one every 5 s."""

HASTE = 3.0
"""Seconds in which it must send the first frame."""

LONGEST_EVENT = 16 << 20
"""Bytes of a line of its stream."""

SPAN = 900
"""Seconds that are shown of the past second by second."""

LEVELS = " ▁▂▃▄▅▆▇█"
"""A character for each eighth of activity, the first for what is not known."""


@dataclass(slots=True)
class Recent:
    """The activity (0-1) of each GPU in the last 15 minutes, a value a second, None in a gap."""

    rings: dict[str, deque[float | None]] = field(default_factory=dict)

    def take(self, frame: Document) -> None:
        for gpu in frame["gpus"]:
            now = next(m["value"] for m in gpu["meters"] if m["name"] == "activity")
            self.rings.setdefault(gpu["uuid"], deque(maxlen=SPAN)).append(now)

    def take_history(self, history: Document) -> None:
        """Take in what an agent remembers, or what came since."""
        series = history["series"]["activity"]
        for uuid, kept in history["gpus"].items():
            codes = array("B" if series["bytes"] == 1 else "H", b64decode(kept["activity"]))
            values = (None if c == series["gap"] else c * series["scale"] for c in codes)
            if history["whole"]:
                self.rings[uuid] = deque(maxlen=SPAN)
            self.rings.setdefault(uuid, deque(maxlen=SPAN)).extend(values)

    def line(self, uuid: str, columns: int) -> str:
        """The means of as many equal parts of the 15 minutes, the newest on the right."""
        values = [*self.rings.get(uuid, ())]
        values = [*[None] * (SPAN - len(values)), *values]
        parts = [values[n * SPAN // columns : (n + 1) * SPAN // columns] for n in range(columns)]
        known = ([v for v in part if v is not None] for part in parts)
        levels = (1 + min(7, int(8 * fmean(part))) if part else 0 for part in known)
        return "".join(LEVELS[level] for level in levels)


@dataclass(slots=True)
class RunningAgent:
    """One agent, by its address (`http://HOST:PORT`), with the first frame that was asked for."""

    url: str
    recent: Recent = field(default_factory=Recent)
    first: Document = field(default_factory=dict)

    def frames(self, patience: float = PATIENCE) -> Iterator[Document]:
        """A frame every second. Raises NoAnswer where the agent does not answer, or ends."""
        machine: Document = {}
        where = place(self.url)
        with opened(f"{self.url}/api/v1/stream", patience) as stream:
            try:
                for name, content in _events(stream):
                    if name == "history":
                        self.recent.take_history(content)
                    elif name == "machine":
                        machine = content
                        version = content["machine"]["version"]
                        if version != __version__:
                            raise NoAnswer(  # noqa: TRY301
                                f"{where} is of version {version}, not {__version__}"
                            )
                    elif name == "tick":
                        frame = whole(machine, content)
                        frame["runbook"] = f"{where}/runbook.html"
                        self.recent.take(frame)
                        yield frame
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"{where} does not answer any more: {error}") from error
            except NoAnswer:
                raise
            except Exception as error:  # whatever it answers
                raise NoAnswer(f"{where} does not answer as an agent does: {error!r}") from error
        raise NoAnswer(f"{where} does not answer any more: it has ended the stream")

    def snapshot(self) -> Document:
        """All values, as `/api/v1/snapshot` has them. Raises NoAnswer."""
        found: Document = fetched(f"{self.url}/api/v1/snapshot")
        return found


def _events(stream: http.client.HTTPResponse) -> Iterator[tuple[str, Document]]:
    name = ""
    while raw := stream.readline(LONGEST_EVENT):
        if len(raw) == LONGEST_EVENT:
            raise ValueError(f"an event has more than {LONGEST_EVENT} bytes")
        word, _, value = raw.decode(errors="replace").rstrip("\n").partition(": ")
        if word == "event":
            name = value
        elif word == "data":
            yield name, json.loads(value)


def address_of(here: HttpConfig) -> str:
    """Return the address of this machine's agent: loopback if it listens on all addresses."""
    host, port = here.address
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def asked(arguments: argparse.Namespace, settings: Settings) -> tuple[RunningAgent | None, str]:
    """The agent to show, or None and why this machine is read instead; raises NoAnswer where the
    agent that `--agent` names does not answer."""
    if arguments.simulate is not None or arguments.replay is not None:
        return None, ""
    here = settings[HttpConfig]
    agent = RunningAgent((arguments.agent or address_of(here)).rstrip("/"))
    try:
        agent.first = next(agent.frames(HASTE))
    except NoAnswer as error:
        if arguments.agent:
            raise
        with_tls = " (with TLS or passwords: --agent https://USER:PASSWORD@NAME:PORT)"
        why = f"No agent to ask, so this machine is read here, without history and jobs: {error}"
        return None, why + with_tls * bool(here.web_config_file)
    return agent, ""
