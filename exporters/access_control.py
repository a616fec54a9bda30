"""Access control: known host names, client certificates and passwords.

A web page can give its own name the address 127.0.0.1 once it is loaded (DNS rebinding); to a
browser the agent then belongs to that page, which may read all of it. What such a request cannot
change is the name in its Host header, and which page sent it.
"""

import os
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv6Network, ip_address

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from exporters.passwords import CheckResult, Passwords, credentials
from exporters.web_config import WebConfig

STREAM = "/api/v1/stream"
OUR_OWN = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site of the agent's own page, and of a user who typed the address."""


OURS = ("localhost", os.uname().nodename)
SEEN = 256
"""Names of which the answer is kept: the same few are asked for in every request."""


def is_misdirected(request: web.Request, names: tuple[str, ...]) -> bool:
    """Return whether a request over loopback names a host that is not known to be ours: `names`,
    this machine's own, localhost or an address of loopback. One without a Host header comes from no
    browser."""
    here = request.get_extra_info("sockname")
    if not here or not _is_loopback(here[0]):
        return False
    hosts = list(request.headers.getall(hdrs.HOST, ()))
    if not request.raw_path.startswith("/"):  # a whole URL, which goes before the header
        hosts.append(request.host)
    return any(not _is_ours(host, names) for host in hosts)


def is_cross_site(request: web.Request) -> bool:
    """Return whether a page of another origin asks for the stream: 32 of these would shut all
    others out, though it could not read them."""
    if request.path != STREAM:
        return False
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site.lower() not in OUR_OWN
    origin = request.headers.get(hdrs.ORIGIN)  # of browsers of before 2023
    return origin is not None and origin.partition("://")[2] != request.headers.get(hdrs.HOST, "")


@lru_cache(SEEN)
def _is_ours(host: str, names: tuple[str, ...]) -> bool:
    name = _name(host)
    return _is_loopback(name) or name in {_name(known) for known in (*names, *OURS)}


def _name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


@lru_cache(SEEN)
def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


CHALLENGE: dict[str, str] = {hdrs.WWW_AUTHENTICATE: 'Basic realm="dgx-telemetry", charset="UTF-8"'}


class AccessControl:
    """Answers in place of the handler whom it does not let in, and closes; every path is asked
    alike, health and readiness too, as in all exporters of this format."""

    def __init__(
        self, config: Callable[[], WebConfig], names: Callable[[], tuple[str, ...]] = tuple
    ) -> None:
        """`names` gives those of the agent beside the ones of loopback."""
        self._config = config
        self._names = names
        self._passwords = Passwords()

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A middleware before every handler, also those of paths that do not exist."""
        config = self._config()
        if is_misdirected(request, self._names()):
            return refused(421, "This name is not known here; allowed_hosts would make it known.")
        if is_cross_site(request):
            return refused(403, "The stream is for the agent's own page.")
        if not is_named(request, config):
            return refused(403, "No name in the client certificate may connect.")
        refusal = await self._check_password(request, config) if config.users else None
        return refusal if refusal is not None else await handler(request)

    async def _check_password(self, request: web.Request, config: WebConfig) -> web.Response | None:
        known = credentials(request.headers.get(hdrs.AUTHORIZATION, ""))
        if known is None:
            return refused(401, "User and password are needed.", CHALLENGE)
        peer = request.get_extra_info("peername")
        client = client_of(peer[0]) if peer else ""
        result = await self._passwords.check(config.users, *known, client)
        if result is CheckResult.BUSY:
            later: dict[str, str] = {hdrs.RETRY_AFTER: "1"}
            return refused(429, "Too many passwords are being checked.", later)
        if result is CheckResult.WRONG:
            return refused(401, "User and password do not match.", CHALLENGE)
        return None


def client_of(address: str) -> str:
    """Return the client that an address counts as: itself, or its /64, of which one client has all
    addresses."""
    parsed = ip_address(address.partition("%")[0])
    if parsed.version == 4:
        return address
    return str(IPv6Network((parsed, 64), strict=False).network_address)


def is_named(request: web.Request, config: WebConfig) -> bool:
    """Return whether the client's certificate, which is valid, has one of the names that may
    connect."""
    tls = config.tls_server_config
    allowed = tls.client_allowed_sans if tls else None
    if not allowed:
        return True
    channel = request.get_extra_info("ssl_object")
    certificate = channel.getpeercert() if isinstance(channel, ssl.SSLObject) else None
    names = dict(certificate or {}).get("subjectAltName", ())
    return any(isinstance(name, tuple) and name[1] in allowed for name in names)


def refused(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """The answer to who is not let in; the connection is closed, its place is for others."""
    response = web.Response(text=f"{sentence}\n", status=status, headers=headers)
    response.force_close()
    return response
