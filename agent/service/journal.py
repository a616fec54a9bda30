"""Output for systemd: the agent's log on standard error, and notifications (sd_notify)."""

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from time import CLOCK_MONOTONIC, clock_gettime_ns
from typing import Any, Literal, TextIO

from agent.config.settings import Section
from agent.errors import LogEvent, printable


class LogConfig(Section, frozen=True):
    """Settings for the agent's log on standard error."""

    table = "log"
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["logfmt", "json"] = "logfmt"


class AgentFormatter(logging.Formatter):
    """Formats a log record as `level=info logger=agent event=... key=value`, or as a JSON object.
    In the journal, each line starts with the syslog priority (`<3>level=error ...`). Elsewhere, it
    includes the time."""

    def __init__(self, form: str, *, journal: bool) -> None:
        super().__init__()
        self._json, self._journal = form == "json", journal

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {"level": record.levelname.lower(), "logger": record.name}
        if not self._journal:
            time = f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3]
            entry = {"time": f"{time}Z", **entry}
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._json:
            if isinstance(record.msg, LogEvent):
                entry |= {"event": record.msg.name, **record.msg.fields}
            else:
                entry["message"] = record.getMessage()
            line = json.dumps(entry if trace is None else {**entry, "traceback": trace})
        else:
            message = printable(record.getMessage()).replace("\n", " ")
            line = f"{' '.join(f'{key}={value}' for key, value in entry.items())} {message}"
            line += "" if trace is None else f" traceback={json.dumps(trace)}"
        priorities = {"DEBUG": 7, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}  # of syslog
        return f"<{priorities.get(record.levelname, 6)}>{line}" if self._journal else line


def is_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a stream is connected to the systemd journal. JOURNAL_STREAM must match the
    device and inode of the stream, because a child may inherit the variable, but not the stream."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or not a file
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def start_logging(config: LogConfig) -> None:
    """Write the log to standard error. Call this function again to change the level or format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AgentFormatter(config.format, journal=is_journal(sys.stderr)))
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


TIMEOUT = 0.1
"""Maximum number of seconds to wait for space in the queue of the service manager's socket."""

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


def status(sentence: str) -> str:
    return f"STATUS={' '.join(sentence.split())}"


@dataclass(slots=True, eq=False)
class NotifySocket:
    """The notification socket of the service manager. If there is none, nothing is sent.

    `watchdog` is the watchdog timeout in seconds, or 0 if the watchdog is disabled.
    """

    address: str = ""
    watchdog: float = 0.0

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "NotifySocket":
        """Create the socket from the variables NOTIFY_SOCKET and WATCHDOG_USEC. WATCHDOG_USEC is
        ignored if WATCHDOG_PID is the ID of another process."""
        text = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        seconds = int(text) / 1e6 if mine and text.isdecimal() else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), seconds)

    def send(self, *news: str) -> None:
        """Send `news`, such as `READY=1`, in one message. Without a service manager, do nothing."""
        if not self.address or not news:
            return
        abstract = self.address.startswith("@")  # an abstract socket begins with a null byte
        address = f"\0{self.address[1:]}" if abstract else self.address
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
        ):
            channel.settimeout(TIMEOUT)
            channel.sendto("\n".join(news).encode(), address)

    @contextmanager
    def while_reloading(self) -> Iterator[None]:
        """Notify systemd before and after a reload. The first message includes a timestamp, which
        systemd compares with the time of its request."""
        self.send(f"RELOADING=1\nMONOTONIC_USEC={clock_gettime_ns(CLOCK_MONOTONIC) // 1000}")
        yield
        self.send(READY)
