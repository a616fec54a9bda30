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


class LogfmtFormatter(logging.Formatter):
    """`level=info logger=agent.gpus event=... key=value`, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        message = printable(record.getMessage()).replace("\n", " ")
        text = f"level={record.levelname.lower()} logger={record.name} {message}"
        if record.exc_info:
            text += f" traceback={json.dumps(self.formatException(record.exc_info))}"
        return text


class JsonFormatter(logging.Formatter):
    """The same, an object a line; what is no event of ours has its text as `message`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {"level": record.levelname.lower(), "logger": record.name}
        if isinstance(record.msg, LogEvent):
            entry |= {"event": record.msg.name, **record.msg.fields}
        else:
            entry["message"] = record.getMessage()
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
"""Of syslog, by level."""


class JournalFormatter(logging.Formatter):
    """Another format with the priority in front, as the journal reads it: `<3>level=error ...`."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        priority = PRIORITIES.get(record.levelname, PRIORITIES["INFO"])
        return f"<{priority}>{self._formatter.format(record)}"


class TimedFormatter(logging.Formatter):
    """Another format with the wall time in front, for where no journal notes it."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        text = self._formatter.format(record)
        time = f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
        return f'{{"time": "{time}", {text[1:]}' if text.startswith("{") else f"time={time} {text}"


FORMATTERS: dict[str, type[logging.Formatter]] = {"logfmt": LogfmtFormatter, "json": JsonFormatter}


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
    formatter = FORMATTERS[config.format]()
    handler.setFormatter(
        (JournalFormatter if is_journal(sys.stderr) else TimedFormatter)(formatter)
    )
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
