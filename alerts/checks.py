"""What the values of `[alerts]` and `[alertmanager]` must be, besides their types, by key."""

from collections.abc import Callable
from dataclasses import fields
from urllib.parse import urlsplit

from alerts.receivers import Receivers
from alerts.spans import seconds
from alerts.thresholds import Thresholds

Check = tuple[Callable[[str], bool], str]

SHORTEST, LONGEST = 60.0, 86_400.0
"""Seconds: four scrapes of 15 s; a day."""


def _is_span(text: str) -> bool:
    try:
        return SHORTEST <= seconds(text) <= LONGEST
    except ValueError:
        return False


def _is_url(text: str) -> bool:
    """A URL without a password in it: what is written here may be read by everybody."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 (raises where it is no number)
    except ValueError:
        return False
    whole = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable()
    return whole and "@" not in parts.netloc and " " not in text


def _is_smarthost(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65_536


def _is_word(text: str) -> bool:
    return bool(text) and text.isprintable() and " " not in text


SPAN: Check = (_is_span, "a duration from 1m to 1d, such as 15m or 1h")
KINDS_OF_KEY: tuple[tuple[str, Check], ...] = (
    ("_url", (_is_url, "an http or https URL without a name or password in it")),
    ("_file", (lambda t: t.startswith("/") and t.isprintable(), "the absolute path of a file")),
    ("_to", (lambda t: "@" in t and t.isprintable(), "an e-mail address")),
    ("_from", (lambda t: "@" in t and t.isprintable(), "an e-mail address")),
    ("_smarthost", (_is_smarthost, "HOST:PORT of a mail server")),
    ("", (_is_word, "one word")),
)
"""By what the name of a key of `[alertmanager]` ends in; the first that fits."""


def _or_nothing(check: Check) -> Check:
    holds, expected = check
    return (lambda text: not text or holds(text)), f"empty, or {expected}"


def _of_receivers(key: str) -> Check:
    return _or_nothing(next(check for ending, check in KINDS_OF_KEY if key.endswith(ending)))


CHECKS: dict[str, tuple[Callable[..., bool], str]] = {
    **{f"alerts.{f.name}": SPAN for f in fields(Thresholds) if f.name.endswith("_window")},
    "alerts.silent_for": SPAN,
    "alerts.hot_margin": (lambda n: -20 <= n <= 50, "degrees from -20 to 50"),
    "alerts.nvlink_errors": (lambda n: 1 <= n <= 1_000_000, "a number from 1 to 1000000"),
    "alerts.runbook": (_is_word, "a URL or a path without spaces"),
    **{f"alertmanager.{f.name}": _of_receivers(f.name) for f in fields(Receivers) if f.type is str},
}
