"""Which exposition format, and which coding, a client asks for."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

OPENMETRICS = "application/openmetrics-text"
TEXT = "text/plain"
SPOKEN = {
    (OPENMETRICS, ""),
    (OPENMETRICS, "1.0.0"),
    (TEXT, ""),
    (TEXT, "0.0.4"),
    (TEXT, "1.0.0"),
    ("text/*", ""),
    ("*/*", ""),
}
"""Media ranges that are answered in kind. Others are passed over: the library would echo any
version that it is asked for, and fail on one that is no number."""
ESCAPINGS = ("allow-utf-8", "underscores", "dots", "values")
AS_IT_IS = "allow-utf-8"
REWRITING = "dots"
"""The one escaping that changes names like ours. Under the others the text is the same, and the
library writes it a third faster where it need not look at each letter of each name."""

SEEN = 16
"""Headers of which the answer is kept, at most 8 KB each: a client sends the same in each request,
and reading it again was a quarter of what answering a scrape from memory costs."""


class Format(NamedTuple):
    """One exposition format: its Content-Type, and the function that renders a registry in it."""

    content_type: str
    encode: Callable[[Collector], bytes]


class Choice(NamedTuple):
    """One element of an Accept or Accept-Encoding header; `quality` is from 0 to 1."""

    value: str
    parameters: dict[str, str]
    quality: float


@lru_cache(SEEN)
def negotiate(accept: str) -> Format:
    """The format that the client likes best of those spoken, else the oldest text format."""
    for value, parameters, _ in by_preference(accept):
        version = parameters.get("version", "")
        if (value, version) in SPOKEN:
            return format_for(value, version, parameters.get("escaping", ""))
    return format_for(TEXT, "", "")


@lru_cache(SEEN)
def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the client named gzip without refusing it."""
    return any(choice.value == "gzip" for choice in by_preference(accept_encoding))


def by_preference(header: str) -> list[Choice]:
    """The elements of a header that are not refused, the best liked first."""
    choices = (parsed(element) for element in header.lower().split(","))
    return sorted((c for c in choices if c.quality > 0.0), key=lambda c: -c.quality)


def parsed(element: str) -> Choice:
    """One element with its parameters; a quality that is no number refuses it."""
    value, *rest = (part.strip() for part in element.split(";"))
    pairs = (part.partition("=") for part in rest)
    parameters = {name.strip(): text.strip().strip('"') for name, _, text in pairs}
    try:
        quality = float(parameters.get("q", "1"))
    except ValueError:
        quality = 0.0
    return Choice(value, parameters, quality)


def format_for(media: str, version: str, escaping: str) -> Format:
    """What the library makes of one media range; formats with one Content-Type are alike."""
    parameters = {"version": version, "escaping": escaping if escaping in ESCAPINGS else ""}
    asked = "".join(f";{name}={text}" for name, text in parameters.items() if text)
    encode, content_type = choose_encoder(media + asked)
    if escaping != REWRITING:
        encode, _ = choose_encoder(f"{media};version=1.0.0;escaping={AS_IT_IS}")
    return Format(content_type, encode)
