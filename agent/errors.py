"""Exceptions for invalid input, descriptions of unexpected exceptions, and log events."""

import logging
import traceback
from typing import NamedTuple

log = logging.getLogger("agent")
"""The logger for all events of the agent."""


class BadInput(ValueError):
    """Raised for invalid user input. The message is one sentence, and the command exits with 2."""


class Failure(NamedTuple):
    """An unexpected exception: its type, its location (file:line), and its message."""

    type: str
    place: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        places = [f"{at.filename}:{at.lineno}" for at in traceback.extract_tb(error.__traceback__)]
        return cls(type(error).__name__, "".join(places[-1:]), str(error))

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" + (f" ({self.place})" if self.place else "")


def printable(text: str) -> str:
    """Return `text` with control and other unprintable characters escaped, as in `\\x1b`, so that
    it is safe to print on a terminal. Keep line breaks."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def encodable(label: str) -> str:
    """Return a label value that is safe to export. Question marks replace unprintable characters,
    characters that change the text direction, and bytes that are not UTF-8."""
    if label.isprintable():
        return label
    return "".join(letter if letter.isprintable() else "?" for letter in label)


class LogEvent:
    """The message of a log record: an event name and fields.

    A formatter may read the name and the fields separately. As a string, the message is a single
    line, `event=NAME key=value`. Control characters are escaped, so names from a driver or a
    recording are safe to print.
    """

    def __init__(self, name: str, /, **fields: str | float | bool | None) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        pairs = {"event": self.name, **self.fields}
        return printable(" ".join(f"{key}={_quoted(value)}" for key, value in pairs.items()))


def _quoted(value: str | float | bool | None) -> str:
    """Return a value in logfmt, in quotes if it is not a single word."""
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value).replace("\n", " ")
    if text and not any(mark in text for mark in ' "=\\'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
