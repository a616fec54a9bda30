"""Who is answered: the rate limit, client certificates and passwords of the web configuration."""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from exporters.passwords import Passwords, Verdict, credentials
from exporters.web_config import RateLimit, WebConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CHALLENGE: dict[str, str] = {hdrs.WWW_AUTHENTICATE: 'Basic realm="dgx-telemetry", charset="UTF-8"'}
LATER: dict[str, str] = {hdrs.RETRY_AFTER: "1"}


@dataclass(slots=True, eq=False)
class Tokens:
    """A token bucket, full at the start."""

    limit: RateLimit
    now: Callable[[], float]  # s
    _left: float = 0.0
    _at: float = 0.0

    def __post_init__(self) -> None:
        self._left, self._at = float(self.limit.burst), self.now()

    def take(self) -> bool:
        """Whether there was a token left."""
        now = self.now()
        self._left = min(self.limit.burst, self._left + (now - self._at) / self.limit.interval)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Admission:
    """Answers in place of the handler whom it does not let in; every path is asked alike, health
    and readiness too, as in all exporters of this format."""

    def __init__(self, config: Callable[[], WebConfig], now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._passwords = Passwords()
        self._tokens: Tokens | None = None

    async def add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        """The headers that the configuration asks for; they go before the agent's own."""
        response.headers.update(self._config().headers)

    def middleware(self) -> Middleware:
        """Stands before every handler, also those of paths that do not exist."""

        @web.middleware
        async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
            refusal = await self._refusal(request)
            return refusal if refusal is not None else await handler(request)

        return admitted

    async def _refusal(self, request: web.Request) -> web.Response | None:
        config = self._config()
        refusal = self._limited(config)
        if refusal is None:
            refusal = unnamed(request, config)
        if refusal is None and config.users:
            refusal = await self._stranger(request, config)
        return refusal

    def _limited(self, config: WebConfig) -> web.Response | None:
        limit = config.rate_limit
        if not limit.interval:
            return None
        if self._tokens is None or self._tokens.limit != limit:
            self._tokens = Tokens(limit, self._now)
        return None if self._tokens.take() else refused(429, "Too many requests.", LATER)

    async def _stranger(self, request: web.Request, config: WebConfig) -> web.Response | None:
        known = credentials(request.headers.get(hdrs.AUTHORIZATION, ""))
        if known is None:
            return refused(401, "User and password are needed.", CHALLENGE)
        verdict = await self._passwords.verdict(config.users, *known)
        if verdict is Verdict.BUSY:
            return refused(429, "Too many passwords are being checked.", LATER)
        if verdict is Verdict.WRONG:
            return refused(401, "User and password do not match.", CHALLENGE)
        return None


def unnamed(request: web.Request, config: WebConfig) -> web.Response | None:
    """A refusal for who has a good certificate, but none of the names that may connect."""
    allowed = config.tls.client_allowed_sans if config.tls else ()
    if not allowed:
        return None
    channel = request.get_extra_info("ssl_object")
    certificate = channel.getpeercert() if isinstance(channel, ssl.SSLObject) else None
    names = dict(certificate or {}).get("subjectAltName", ())
    if any(isinstance(name, tuple) and name[1] in allowed for name in names):
        return None
    return refused(403, "No name in the client certificate may connect.", {})


def refused(status: int, sentence: str, headers: dict[str, str]) -> web.Response:
    """The answer to who is not let in."""
    return web.Response(text=f"{sentence}\n", status=status, headers=headers)
