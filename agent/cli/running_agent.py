"""The agent that runs already: its frames, which `once` and `watch` show as its live page does."""

import argparse
import http.client
import json
from array import array
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Thread
from time import monotonic

from agent import __version__
from agent.cli.table import divided
from agent.config.settings import Settings
from agent.report.gpu_time import HOUR, pair_of, words
from agent.report.questions import NoAnswer, fetched, opened, place
from exporters.live.page_state import whole
from exporters.messages import Document
from exporters.settings import HttpConfig

PATIENCE = 10.0
"""Seconds without an event after which the agent does not answer: it sends one each 5 s."""

HASTE = 3.0
"""Seconds in which it must send the first frame."""

SPAN = 900
"""Seconds that are shown of the past second by second."""

BEFORE = 3
"""Hours before this one that are shown."""

HOURS_EVERY, HOURS_WITHIN = 60.0, 2.0
"""Seconds between two looks at the hours, and for which the first frame waits for them."""

LEVELS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*%#"
"""A character for each eighth of activity, the first for what is not known; where the terminal has
no others than ASCII, the second."""


@dataclass(slots=True)
class Recent:
    """The activity (0-1) of each GPU in the last 15 minutes, a value a second, None in a gap."""

    encoding: str = "utf-8"  # of the terminal
    rings: dict[str, deque[float | None]] = field(default_factory=dict)
    hours: list[Document] = field(default_factory=list)  # the agent's own sums
    no_hours: str = ""  # why there are none

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

    def by_hour(self, now: float, uuid: str = "") -> str:
        """Return where the time of one GPU, or of all, went in this hour and the three before."""
        said, before = [], ""
        for hour in self.hours:
            which = [hour["gpus"].get(uuid, {})] if uuid else [r["seconds"] for r in hour["rows"]]
            sums: Counter[str] = Counter()
            for seconds in which:
                sums.update(seconds)
            began = hour["hour"] * HOUR
            if sum(sums.values()) and 0 <= now - began < (BEFORE + 1) * HOUR:
                named = ((words(pair_of(*pair.split("/"))), part) for pair, part in sums.items())
                parts = divided({name.replace(", ", ": "): part for name, part in named})
                first = max(began, hour.get("since", 0.0))
                at = datetime.fromtimestamp(first, UTC).astimezone()
                if hour is self.hours[0]:
                    before = f" (nothing is recorded before {at:%H:%M})"
                so_far = " until now" * (now - began < HOUR)
                said.append(f"from {at:%H:%M}{so_far} {parts}")
        who = "it" if uuid else "all GPUs"
        return f"{who} by the hour{before}: {'; '.join(said)}" if said else self.no_hours

    def line(self, uuid: str, columns: int) -> str:
        """The means of as many equal parts of the 15 minutes, the newest on the right."""
        values = [*self.rings.get(uuid, ())]
        values = [*[None] * (SPAN - len(values)), *values]
        parts = [values[n * SPAN // columns : (n + 1) * SPAN // columns] for n in range(columns)]
        levels = LEVELS
        try:
            LEVELS.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            levels = PLAIN
        return "".join(levels[_level([v for v in part if v is not None])] for part in parts)


def _level(known: list[float]) -> int:
    return 1 + min(7, int(8 * sum(known) / len(known))) if known else 0


@dataclass(slots=True)
class RunningAgent:
    """One agent, by its address (`http://HOST:PORT`), with the first frame that was asked for."""

    url: str
    recent: Recent = field(default_factory=Recent)
    first: Document = field(default_factory=dict)
    _due: float = 0.0  # the next look at the hours
    _looking: Thread | None = None  # at the hours, which may take long

    def frames(self, patience: float = PATIENCE) -> Iterator[Document]:
        """A frame each second. Raises NoAnswer where the agent does not answer, or ends."""
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
                            raise NoAnswer(f"{where} is of version {version}, not {__version__}")
                    elif name == "tick":
                        frame = whole(machine, content)
                        frame["runbook"] = f"{where}/runbook.html"
                        if monotonic() >= self._due:
                            self._look_at_hours()
                        self.recent.take(frame)
                        yield frame
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"{where} does not answer any more: {error}") from error
            except (LookupError, TypeError, ValueError) as error:
                raise NoAnswer(f"{where} does not answer as an agent does: {error!r}") from error
        raise NoAnswer(f"{where} does not answer any more: it has ended the stream")

    def _look_at_hours(self) -> None:
        """Ask for the hours beside the frames: only their line waits for them, or says why not."""
        self._due = monotonic() + HOURS_EVERY
        if self._looking is None:
            self.recent.no_hours = f"hours before: not known, no answer in {HOURS_WITHIN:.0f} s"
        elif self._looking.is_alive():
            return
        first, self._looking = self._looking is None, Thread(target=self._take_hours, daemon=True)
        self._looking.start()
        self._looking.join(HOURS_WITHIN * first)

    def _take_hours(self) -> None:
        recent = self.recent
        try:
            hours = fetched(f"{self.url}/api/v1/hours", PATIENCE).get("hours", [])
            recent.hours, recent.no_hours = hours, ""
        except (NoAnswer, AttributeError) as error:
            recent.hours, recent.no_hours = [], f"hours before: not known, {error}"

    def snapshot(self) -> Document:
        """All values, as `/api/v1/snapshot` has them. Raises NoAnswer."""
        found: Document = fetched(f"{self.url}/api/v1/snapshot")
        return found


def _events(stream: http.client.HTTPResponse) -> Iterator[tuple[str, Document]]:
    name = ""
    for raw in stream:
        word, _, value = raw.decode().rstrip("\n").partition(": ")
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
