"""Logs on standard error: one line an event, logfmt or JSON, on change of state only."""

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from agent.config.settings import Section
from agent.errors import LogEvent, printable


class LogConfig(Section, frozen=True):
    """Configuration of the agent's log on standard error."""

    table = "log"
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["logfmt", "json"] = "logfmt"


PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
"""Of syslog, by level."""


class AgentFormatter(logging.Formatter):
    """`level=info logger=agent.gpus event=... key=value` on one line, or the same as an object. In
    front stands the priority, as the journal reads it (`<3>level=error ...`), or the wall time."""

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
        return f"<{PRIORITIES.get(record.levelname, 6)}>{line}" if self._journal else line


def is_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream is the one that systemd joined to the journal: JOURNAL_STREAM names
    its device and inode. Both matter, for children inherit the variable and may write elsewhere."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def start_logging(config: LogConfig) -> None:
    """Send this program's logs to standard error; called again, with another level or format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(AgentFormatter(config.format, journal=is_journal(sys.stderr)))
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
