"""Negotiation of the exposition format and of the coding."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import exposition as text
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

OPENMETRICS, TEXT = "application/openmetrics-text", "text/plain"
SEEN = 16
"""Headers of which the answer is kept, at most 8 KB each: a client sends the same each time."""


class Format(NamedTuple):
    """One exposition format: its Content-Type, and how the library writes a registry in it."""

    content_type: str
    encode: Callable[[Collector], bytes]


PLAIN = Format(f"{TEXT}; version=0.0.4; charset=utf-8", text.generate_latest)
OPEN = Format(f"{OPENMETRICS}; version=1.0.0; charset=utf-8", openmetrics.generate_latest)


@lru_cache(SEEN)
def negotiate(accept: str) -> Format:
    """OpenMetrics 1.0.0 where the client likes it best, else the oldest text format."""
    for value, parameters in by_preference(accept):
        if value in (TEXT, "text/*", "*/*"):
            return PLAIN
        if value == OPENMETRICS and parameters.get("version", "1.0.0") == "1.0.0":
            return OPEN
    return PLAIN


@lru_cache(SEEN)
def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the client named gzip without refusing it."""
    return any(value == "gzip" for value, _ in by_preference(accept_encoding))


def by_preference(header: str) -> list[tuple[str, dict[str, str]]]:
    """The elements of a header with their parameters, the best liked first; one of quality 0, or of
    one that is no number, is refused."""
    found = []
    for element in header.lower().split(","):
        value, *rest = (part.strip() for part in element.split(";"))
        pairs = (part.partition("=") for part in rest)
        parameters = {name.strip(): text.strip().strip('"') for name, _, text in pairs}
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            quality = 0.0
        if quality > 0:
            found.append((quality, value, parameters))
    found.sort(key=lambda choice: -choice[0])
    return [(value, parameters) for _, value, parameters in found]
