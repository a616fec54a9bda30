"""Logs on standard error: one line an event, logfmt or JSON, on change of state only."""

import json
import logging
import re
import sys

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
            text += f"\n{self.formatException(record.exc_info)}"
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


FORMATTERS: dict[str, type[logging.Formatter]] = {"logfmt": Logfmt, "json": Json}


def start_logging(config: LogConfig) -> None:
    """Send this program's logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[config.format]())
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
