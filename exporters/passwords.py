"""Basic authentication: passwords against bcrypt hashes, so that guessing costs the agent little,
and keeps no one else out.

A check takes 50 to 100 ms of CPU at the usual cost. One thread makes them; each client has one at a
time, and rests after a wrong one. What was right is remembered, so that a Prometheus that scrapes
with a password pays once.
"""

import asyncio
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from aiohttp import BasicAuth

from exporters.web_config import WebConfigError

MOST_WAITING = 32
"""Checks of one client that may wait for their turn; a further one is asked to try later."""

PAUSE = 0.25
"""Seconds for which a wrong password holds up its client: it makes at most 4 guesses a second."""

LONGEST = 72
"""Bytes of a password that bcrypt looks at."""

ALPHABET = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class CheckResult(Enum):
    """Result of checking a password."""

    RIGHT = "right"
    WRONG = "wrong"
    BUSY = "busy"  # not known: too many wait


def require_bcrypt() -> None:
    """Raise WebConfigError where passwords cannot be checked."""
    try:
        import bcrypt  # noqa: F401
    except ImportError as error:
        extra = "the extra `auth` (pip install 'dgx-telemetry[auth]')"
        raise WebConfigError(f"basic_auth_users needs bcrypt, which is {extra}") from error


def unmatched_hash(users: Mapping[str, str]) -> str:
    """A hash that no password has, as costly as those of the users: the time that an answer takes
    does not say which users there are."""
    import bcrypt

    cost = max(int(stored.split("$")[2]) for stored in users.values())
    return bcrypt.gensalt(cost).decode() + "".join(secrets.choice(ALPHABET) for _ in range(31))


def credentials(header: str) -> tuple[str, str] | None:
    """User and password of an Authorization header, or None where it holds none."""
    with suppress(ValueError):
        given = BasicAuth.decode(header, encoding="utf-8")
        return given.login, given.password
    return None


@dataclass(slots=True, eq=False)
class ClientQueue:
    """The checks of one client, one after the other; forgotten when none is left."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0  # the one whose turn it is included


class Passwords:
    """Checks passwords; remembers, of what was right, digests under a secret of this process."""

    def __init__(self, pause: float = PAUSE) -> None:
        self.checks = 0  # how often bcrypt was asked
        self._pause = pause
        self._secret = secrets.token_bytes(32)
        self._users: Mapping[str, str] = {}
        self._right: dict[str, bytes] = {}  # by user
        self._unmatched = ""
        self._queues: dict[str, ClientQueue] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")

    async def check(
        self, users: Mapping[str, str], user: str, password: str, client: str
    ) -> CheckResult:
        """Return whether this user has this password; a password known to be right is accepted
        without a wait."""
        if users is not self._users:
            self._users, self._unmatched, self._right = users, unmatched_hash(users), {}
        stored = users.get(user, self._unmatched)
        text = (stored + password).encode("utf-8", "surrogatepass")
        digest = blake2b(text, key=self._secret).digest()
        if self._right.get(user) == digest:
            return CheckResult.RIGHT
        queue = self._queues.setdefault(client, ClientQueue())
        if queue.waiting >= MOST_WAITING:
            return CheckResult.BUSY
        queue.waiting += 1
        try:
            async with queue.turn:
                if self._right.get(user) == digest:  # another request asked the same meanwhile
                    return CheckResult.RIGHT
                self.checks += 1
                loop = asyncio.get_running_loop()
                matched = await loop.run_in_executor(self._thread, matches, password, stored)
                if matched and user in users:
                    self._right[user] = digest
                    return CheckResult.RIGHT
                await asyncio.sleep(self._pause)
                return CheckResult.WRONG
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                del self._queues[client]


def matches(password: str, stored: str) -> bool:
    """Return whether a password has this hash; slow on purpose, while other threads run."""
    import bcrypt

    try:
        return bcrypt.checkpw(password.encode()[:LONGEST], stored.encode())
    except ValueError:  # what bcrypt cannot take is no password
        return False
