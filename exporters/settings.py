"""Settings of the HTTP server: where it listens, its access control, and DCGM's names."""

import ipaddress
from typing import Annotated, Literal

from msgspec import Meta

from agent.config.decoding import TextCheck
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
    str,
    TextCheck(lambda t: bool(parse_listen(t)), "HOST:PORT with a port from 0 to 65535"),
]


Hosts = Annotated[
    str,
    Meta(pattern=r"\A[A-Za-z0-9_.:,\s-]*\Z", description="names of hosts, separated by commas"),
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
