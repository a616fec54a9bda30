"""Errors of input, unexpected errors, and events for the log."""

import traceback
from typing import NamedTuple


class BadInput(ValueError):
    """Error in the user's input; the message is one sentence. Exit status 2."""


class Failure(NamedTuple):
    """An unexpected error: its type, its place (file:line), and its message."""

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
    """Text that can be shown: control sequences of a terminal, and unprintable characters, in names
    of devices, of programs or of a tape become `\\x1b`. Ends of lines stay."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def encodable(label: str) -> str:
    """A label value that shows its true content: unprintable characters become question marks, as
    do letters that turn the direction of text, and bytes that are no UTF-8."""
    if label.isprintable():
        return label
    return "".join(letter if letter.isprintable() else "?" for letter in label)


class LogEvent:
    """The message of a log record: the name of an event, and its fields as values.

    Formatters take the two apart; as text it is `event=NAME key=value`, on one line, and any
    formatter can write it: a name that a driver or a tape made up commands no terminal.
    """

    def __init__(self, name: str, /, **fields: str | float | bool | None) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        pairs = {"event": self.name, **self.fields}
        return printable(" ".join(f"{key}={_quoted(value)}" for key, value in pairs.items()))


def _quoted(value: str | float | bool | None) -> str:
    """A value of logfmt: in quotes if it would not be read as one word."""
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value).replace("\n", " ")
    if text and not any(mark in text for mark in ' "=\\'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
