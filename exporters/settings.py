"""Settings of the HTTP server: address, access control, DCGM names, and the series in `/metrics`.
The live page, the API, and the diagnosis always use all series."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal

from msgspec import Meta

from agent.catalogue import EXPORTED
from agent.config.decoding import Mismatch, TextCheck, shown
from agent.config.settings import Section
from agent.model import InDefault, Sample

Families = Mapping[str, list[Sample]]


def parse_listen(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT` or `[IPV6]:PORT`, without HOST for all addresses, or raise ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not 0 <= int(port) <= 65535:
        raise ValueError(text)
    if host.startswith("[") and host.endswith("]"):
        address = str(ipaddress.IPv6Address(host[1:-1]))
        return "" if address == "::" else address, int(port)
    if ":" in host:
        raise ValueError(text)
    return host, int(port)


LISTEN = TextCheck(lambda t: bool(parse_listen(t)), "HOST:PORT with a port from 0 to 65535")
Hosts = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_.:,\s-]*\Z", description="names of hosts, separated by commas")
]


class HttpConfig(Section, frozen=True):
    """HTTP settings: the address (HOST:PORT), the path of the web configuration file (or empty),
    and additional host names that requests over loopback may use."""

    table = ""
    at_start = ("listen", "web_config_file")

    listen: Annotated[str, LISTEN] = "127.0.0.1:9935"
    web_config_file: str = ""
    allowed_hosts: Hosts = ""

    @property
    def address(self) -> tuple[str, int]:
        return parse_listen(self.listen)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.address[0], *self.allowed_hosts.replace(",", " ").split())


class DcgmConfig(Section, frozen=True):
    """Settings of `/metrics/dcgm`: whether it is enabled, and which generation of names it uses."""

    table = "dcgm"

    enabled: bool = False
    names: Literal["both", "before-4.9", "4.9"] = "both"


class NvlinkConfig(Section, frozen=True):
    """NVLink settings: whether to export traffic and limits for each link, not only in total."""

    table = "nvlink"

    per_link: bool = False


class MetricsConfig(Section, frozen=True):
    """Settings of `/metrics`. `set` selects all series or the default set. Metric families whose
    names match `keep` are complete in either case. Families that match `drop` are omitted."""

    table = "metrics"

    set: Annotated[  # `small` is the former name of `default`
        Literal["default", "full", "small"], Meta(description="default or full")
    ] = "default"
    keep: tuple[re.Pattern[str], ...] = ()
    drop: tuple[re.Pattern[str], ...] = ()

    def __post_init__(self) -> None:
        for key, patterns in (("keep", self.keep), ("drop", self.drop)):
            for place, pattern in enumerate(patterns):
                if not any(pattern.fullmatch(metric.name) for metric in EXPORTED):
                    why = f"{shown(pattern.pattern)} is not {_expected(pattern)}"
                    raise Mismatch(f"{key}[{place}]", why)

    def of(self, full: Families, default: Callable[[], Families]) -> Families:
        """Return the families to export, given all families and the default set."""
        found = full if self.set == "full" else default()
        if self.keep and found is not full:
            kept = {name: its for name, its in full.items() if _matches(self.keep, name)}
            found = {**found, **kept}
        if self.drop:
            found = {name: its for name, its in found.items() if not _matches(self.drop, name)}
        return found

    @property
    def missed(self) -> list[str]:
        """Return the names of metrics that are dropped although dashboards or rules need them."""
        needed = (metric.name for metric in EXPORTED if metric.shown is not InDefault.FULL)
        return sorted(name for name in needed if _matches(self.drop, name))


def _matches(patterns: Iterable[re.Pattern[str]], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def _expected(pattern: re.Pattern[str]) -> str:
    """Return the end of an error message about a pattern: an example, and similar metric names."""
    names = [metric.name for metric in EXPORTED]
    from difflib import get_close_matches

    close = get_close_matches(pattern.pattern, names, n=3, cutoff=0.3) or names[:3]
    return (
        "a regular expression for the whole name of a metric in METRICS.md, such as "
        f"{' or '.join(close)}"
    )
