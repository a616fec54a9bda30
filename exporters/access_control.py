"""Access control: known host names, client certificates and passwords."""

import ssl
from collections.abc import Callable, Mapping

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from exporters.connections import client_of
from exporters.names import is_cross_site, is_misdirected
from exporters.passwords import CheckResult, Passwords, credentials
from exporters.web_config import WebConfig

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


def is_named(request: web.Request, config: WebConfig) -> bool:
    """Whether the client's certificate, which is good, has one of the names that may connect."""
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
