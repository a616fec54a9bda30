"""Access control: checks the host name and the password of each request.

A malicious web page can rebind its own host name to 127.0.0.1 after it has loaded (DNS rebinding).
The browser then treats the agent as part of the page's origin, so the page could read every
response. However, the page cannot change the Host and Origin headers of its requests.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from aiohttp import BasicAuth, hdrs, web
from aiohttp.typedefs import Handler

from agent.config.configuration import ConfigError
from agent.ranges import is_loopback


def require_bcrypt() -> None:
    """Raise ConfigError if bcrypt is not installed. Password checks require bcrypt."""
    try:
        import bcrypt  # noqa: F401
    except ImportError as error:
        extra = "the extra `auth` (pip install 'dgx-telemetry[auth]')"
        raise ConfigError(f"basic_auth_users needs bcrypt, which is {extra}") from error


class Passwords:
    """Checks passwords against bcrypt hashes, one at a time and on a separate thread. Digests of
    correct passwords are cached, so that guesses by attackers do not delay other users."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._users: Mapping[str, str] = {}
        self._right: dict[str, bytes] = {}  # digests by user
        self._checking = asyncio.Lock()

    async def check(self, users: Mapping[str, str], user: str, password: str) -> bool:
        """Return whether the password of the user is correct."""
        if users is not self._users:
            self._users, self._right = users, {}
        # For an unknown user, check the costliest hash, so that response times do not reveal users.
        stored = users.get(user) or max(users.values(), key=lambda one: one.split("$")[2])
        text = (stored + password).encode("utf-8", "surrogatepass")
        digest = blake2b(text, key=self._secret).digest()
        if self._right.get(user) == digest:
            return True
        async with self._checking:
            if self._right.get(user) == digest:  # by a request that came at the same time
                return True
            matched = await asyncio.to_thread(matches, password, stored)
        if matched and user in users:
            self._right[user] = digest
        return matched and user in users


def matches(password: str, stored: str) -> bool:
    """Return whether a password matches a bcrypt hash. Slow by design, but releases the GIL."""
    import bcrypt

    try:
        return bcrypt.checkpw(password.encode()[:72], stored.encode())  # the bytes that bcrypt uses
    except ValueError:  # bcrypt rejects the string, so it is not a valid password
        return False


STREAM = "/api/v1/stream"


def is_misdirected(request: web.Request, names: tuple[str, ...]) -> bool:
    """Return whether the Host header of a request over loopback contains an unknown host. Known
    hosts are those in `names`, the host name of this machine, localhost, and loopback addresses. A
    request without a Host header is accepted, because it does not come from a browser."""
    here = request.get_extra_info("sockname")
    if not here or not is_loopback(here[0]):
        return False
    hosts = list(request.headers.getall(hdrs.HOST, ()))
    if not request.raw_path.startswith("/"):  # absolute URL, which takes precedence
        hosts.append(request.host)
    known = {_name(one) for one in (*names, "localhost", os.uname().nodename)}
    return any(name not in known and not is_loopback(name) for name in map(_name, hosts))


def is_cross_site(request: web.Request) -> bool:
    """Return whether a web page of another origin requests the event stream. Such a page cannot
    read the events, but it could open all 32 streams, so that other clients cannot open one."""
    site = request.headers.get("Sec-Fetch-Site", "none").lower()
    return request.path == STREAM and site not in ("same-origin", "none")  # none: a typed URL


def _name(host: str) -> str:
    """Return the name or address in a Host header, without the port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


CHALLENGE: dict[str, str] = {hdrs.WWW_AUTHENTICATE: 'Basic realm="dgx-telemetry", charset="UTF-8"'}


@dataclass(eq=False)
class AccessControl:
    """Middleware that checks all requests, and closes the connections of rejected clients. As in
    other Prometheus exporters, requests for health and readiness are also checked."""

    users: Callable[[], Mapping[str, str]]
    names: Callable[[], tuple[str, ...]] = tuple  # of the agent, besides the loopback names
    _passwords: Passwords = field(default_factory=Passwords)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request before `handler` runs, even if the path does not exist."""
        if is_misdirected(request, self.names()):
            return refused(421, "This name is not known here; allowed_hosts would make it known.")
        if is_cross_site(request):
            return refused(403, "The stream is for the agent's own page.")
        if users := self.users():
            header = request.headers.get(hdrs.AUTHORIZATION, "")
            try:
                given = BasicAuth.decode(header, encoding="utf-8")
            except ValueError:
                return refused(401, "User and password are needed.", CHALLENGE)
            if not await self._passwords.check(users, given.login, given.password):
                return refused(401, "User and password do not match.", CHALLENGE)
        return await handler(request)


def refused(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response for a rejected client, after which the connection is closed."""
    response = web.Response(text=f"{sentence}\n", status=status, headers=headers)
    response.force_close()
    return response
