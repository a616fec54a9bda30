"""Checks of the texts in `[alerts]` and `[alertmanager]`."""

import re
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from agent.config.decoding import TextCheck

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SPAN = re.compile(r"([0-9]{1,15})(ms|[smhdw])")
SHORTEST, LONGEST = 60.0, 86_400.0
"""Seconds: four scrapes of 15 s; a day."""


def seconds(span: str) -> float:
    """15m is 900; raises ValueError."""
    found = SPAN.fullmatch(span)
    if found is None:
        raise ValueError(span)
    return int(found[1]) * UNITS[found[2]]


def _is_url(text: str) -> bool:
    """A URL without a password in it: what is written here may be read by everybody."""
    parts = urlsplit(text)
    parts.port  # noqa: B018 (raises where it is no number)
    whole = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable()
    return whole and "@" not in parts.netloc and " " not in text


def _is_smarthost(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65_536


def _is_word(text: str) -> bool:
    return bool(text) and text.isprintable() and " " not in text


def _or_nothing(holds: Callable[[str], bool], expected: str) -> TextCheck:
    return TextCheck(lambda text: not text or holds(text), f"empty, or {expected}")


Duration = Annotated[
    str,
    TextCheck(
        lambda text: SHORTEST <= seconds(text) <= LONGEST,
        "a duration from 1m to 1d, such as 15m or 1h",
    ),
]
Hold = Annotated[
    str, TextCheck(lambda text: seconds(text) <= LONGEST, "a duration from 0s to 1d, such as 5m")
]
RunbookPlace = Annotated[str, TextCheck(_is_word, "a URL or a path without spaces")]
Url = Annotated[str, _or_nothing(_is_url, "an http or https URL without a name or password in it")]
SecretFile = Annotated[
    str, _or_nothing(lambda t: t.startswith("/") and t.isprintable(), "the absolute path of a file")
]
Email = Annotated[str, _or_nothing(lambda t: "@" in t and t.isprintable(), "an e-mail address")]
Smarthost = Annotated[str, _or_nothing(_is_smarthost, "HOST:PORT of a mail server")]
Word = Annotated[str, _or_nothing(_is_word, "one word")]
