"""Settings of the HTTP server: where it listens, its access control, DCGM's names, and which series
`/metrics` has: all, or those that boards and rules need, less those dropped. The page, the API and
the diagnosis have everything."""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from agent.catalogue import EXPORTED
from agent.config.decoding import Mismatch, TextCheck, shown
from agent.config.settings import Section


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT`, host "" for every address; raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not 0 <= int(port) <= 65535:
        raise ValueError(text)
    if host.startswith("[") and host.endswith("]"):
        address = str(ipaddress.IPv6Address(host[1:-1]))
        return "" if address == "::" else address, int(port)
    if ":" in host:
        raise ValueError(text)
    return host, int(port)


Listen = Annotated[
    str, TextCheck(lambda t: bool(parse_listen(t)), "HOST:PORT with a port from 0 to 65535")
]


Hosts = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_.:,\s-]*\Z", description="names of hosts, separated by commas")
]


class HttpConfig(Section, frozen=True):
    """`listen` is HOST:PORT; `web_config_file` a file with TLS and passwords, or empty;
    `allowed_hosts` the names that the agent answers to on loopback, besides localhost."""

    table = ""
    at_start = ("listen", "web_config_file")

    listen: Listen = "127.0.0.1:9935"
    web_config_file: str = ""
    allowed_hosts: Hosts = ""

    @property
    def address(self) -> tuple[str, int]:
        return parse_listen(self.listen)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.address[0], *self.allowed_hosts.replace(",", " ").split())


class DcgmConfig(Section, frozen=True):
    """`/metrics/dcgm`: whether it answers, and with which names."""

    table = "dcgm"

    enabled: bool = False
    names: Literal["both", "before-4.9", "4.9"] = "both"


SMALL_SET = Path(__file__).with_name("small_set.txt")
"""The metrics that boards and rules ask for, one a line, as `build` writes them."""

QUERIES = ("expr", "query", "definition")
"""Keys of boards whose texts are PromQL."""

NAMES = frozenset(metric.name for metric in EXPORTED)
NAME = re.compile(r"(?<![\w:])dgx_\w+(?![\w:])")


class MetricsConfig(Section, frozen=True):
    """Content of `/metrics`: `set` selects all of it or what boards and rules need, less each
    metric whose whole name is matched by a pattern in `drop`."""

    table = "metrics"

    set: Literal["full", "small"] = "full"
    drop: tuple[re.Pattern[str], ...] = ()

    def __post_init__(self) -> None:
        for place, pattern in enumerate(self.drop):
            if not any(pattern.fullmatch(metric.name) for metric in EXPORTED):
                expected = "a regular expression for the whole name of a metric"
                raise Mismatch(f"drop[{place}]", shown(pattern.pattern), expected)

    def exports(self, name: str) -> bool:
        if any(pattern.fullmatch(name) for pattern in self.drop):
            return False
        return self.set == "full" or name in small_set()

    @property
    def missed(self) -> list[str]:
        """Metrics that are dropped although boards or rules need them."""
        return sorted(n for n in small_set() if any(drop.fullmatch(n) for drop in self.drop))


@cache
def small_set() -> frozenset[str]:
    return frozenset(SMALL_SET.read_text().split())


def needs(texts: Iterable[str]) -> str:
    """The text of SMALL_SET: the metrics of the catalogue that these PromQL texts name."""
    found = {name for text in texts for name in NAME.findall(text)} & NAMES
    return "".join(f"{name}\n" for name in sorted(found))


def queries(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            if key in QUERIES and isinstance(value, str):
                yield value
            else:
                yield from queries(value)
    elif isinstance(document, list):
        for value in document:
            yield from queries(value)
