"""Logs on standard error: one line an event, logfmt or JSON, on change of state only."""

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import TextIO

from agent.config import LogConfig

PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def escaped(record: logging.LogRecord) -> str:
    """The message on one line, with quotes inside its values escaped."""
    if not isinstance(record.args, tuple):
        return record.getMessage().replace("\n", " ")
    values = tuple(
        value
        if isinstance(value, int | float)
        else str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        for value in record.args
    )
    return str(record.msg) % values if values else str(record.msg)


def plain(value: str) -> str:
    """A value of a pair without its quotes and escapes."""
    if not value.startswith('"'):
        return value
    return value[1:-1].replace('\\"', '"').replace("\\\\", "\\")


class Logfmt(logging.Formatter):
    """`level=info logger=agent.gpus event=... key=value`; messages are logfmt already."""

    def format(self, record: logging.LogRecord) -> str:
        message = escaped(record)
        text = f"level={record.levelname.lower()} logger={record.name} {message}"
        if record.exc_info:
            text += f" traceback={json.dumps(self.formatException(record.exc_info))}"
        return text


class Json(logging.Formatter):
    """The same, an object a line."""

    def format(self, record: logging.LogRecord) -> str:
        message = escaped(record)
        pairs = {key: plain(value) for key, value in PAIR.findall(message)}
        entry = {"level": record.levelname.lower(), "logger": record.name, **pairs}
        if not pairs:
            entry["message"] = message
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
"""Of syslog, by level."""


class Prioritised(logging.Formatter):
    """Another format with the priority in front, as the journal reads it: `<3>level=error ...`."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        priority = PRIORITIES.get(record.levelname, PRIORITIES["INFO"])
        return f"<{priority}>{self._formatter.format(record)}"


FORMATTERS: dict[str, type[logging.Formatter]] = {"logfmt": Logfmt, "json": Json}


def is_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the stream is the one that systemd joined to the journal: JOURNAL_STREAM names its
    device and inode. Both matter, for children inherit the variable and may write elsewhere."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def start_logging(config: LogConfig) -> None:
    """Send this program's logs to standard error; called again, with another level or format."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = FORMATTERS[config.format]()
    handler.setFormatter(Prioritised(formatter) if is_journal(sys.stderr) else formatter)
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
