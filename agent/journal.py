"""Logs on standard error: one line an event, logfmt or JSON, on change of state only."""

import json
import logging
import re
import sys

from agent.config import LogConfig

PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


class Logfmt(logging.Formatter):
    """`level=info logger=agent.gpus event=... key=value`; messages are logfmt already."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().replace("\n", " ")
        text = f"level={record.levelname.lower()} logger={record.name} {message}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return text


class Json(logging.Formatter):
    """The same, an object a line."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        pairs = {key: value.strip('"') for key, value in PAIR.findall(message)}
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
