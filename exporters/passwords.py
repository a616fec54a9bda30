"""Basic authentication: passwords against bcrypt hashes, so that guessing costs the agent little.

A check takes 50 to 100 ms of CPU at the usual cost. They run one at a time on a thread, with a
pause after each failure; what was once found right or wrong is remembered, so that a Prometheus
that scrapes with a password pays once.
"""

import asyncio
import secrets
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from exporters.web_config import WebConfigError

REMEMBERED = 256
"""Answers kept of each kind, right and wrong: guesses do not drive out what was right."""

MOST_WAITING = 16
"""Checks that may wait for their turn; who comes then is told to try later."""

PAUSE = 0.25
"""Seconds of rest after a wrong password: at most 4 guesses a second, whoever makes them."""

LONGEST = 72
"""Bytes of a password that bcrypt looks at."""

ALPHABET = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Verdict(Enum):
    """What is made of a password."""

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


def nobodys(users: Mapping[str, str]) -> str:
    """A hash that no password has, as dear as those of the users: the time that an answer takes
    does not tell which users there are."""
    import bcrypt

    cost = max(int(stored.split("$")[2]) for stored in users.values())
    return bcrypt.gensalt(cost).decode() + "".join(secrets.choice(ALPHABET) for _ in range(31))


def credentials(header: str) -> tuple[str, str] | None:
    """User and password of an Authorization header, or None where it holds none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    with suppress(ValueError):
        user, colon, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
        if colon:
            return user, password
    return None


class _Memory:
    """The newest keys, at most REMEMBERED."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)
        return True

    def add(self, key: bytes) -> None:
        self._keys[key] = None
        if len(self._keys) > REMEMBERED:
            self._keys.popitem(last=False)


@dataclass(slots=True, eq=False)
class Passwords:
    """Checks passwords; remembers digests under a secret of this process, and no password."""

    pause: float = PAUSE
    checks: int = 0  # how often bcrypt was asked
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _right: _Memory = field(default_factory=_Memory)
    _wrong: _Memory = field(default_factory=_Memory)
    _users: Mapping[str, str] = field(default_factory=dict)
    _nobody: str = ""
    _waiting: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def verdict(self, users: Mapping[str, str], user: str, password: str) -> Verdict:
        """Whether this user has this password."""
        if users is not self._users:
            self._users, self._nobody = users, nobodys(users)
        stored = users.get(user, self._nobody)
        key = self._key(user, password, stored)
        if key in self._right:
            return Verdict.RIGHT
        if key in self._wrong:
            return Verdict.WRONG
        if self._waiting >= MOST_WAITING:
            return Verdict.BUSY
        self._waiting += 1
        try:
            async with self._turn:
                if key in self._right or key in self._wrong:  # somebody asked the same meanwhile
                    return Verdict.RIGHT if key in self._right else Verdict.WRONG
                return await self._check(key, password, stored, known=user in users)
        finally:
            self._waiting -= 1

    async def _check(self, key: bytes, password: str, stored: str, *, known: bool) -> Verdict:
        self.checks += 1
        if await asyncio.to_thread(matches, password, stored) and known:
            self._right.add(key)
            return Verdict.RIGHT
        self._wrong.add(key)
        await asyncio.sleep(self.pause)
        return Verdict.WRONG

    def _key(self, *parts: str) -> bytes:
        """One digest of all parts, each with its length: no two lists of parts read alike."""
        digest = blake2b(key=self._secret)
        for part in parts:
            raw = part.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "big") + raw)
        return digest.digest()


def matches(password: str, stored: str) -> bool:
    """Whether a password has this hash; slow on purpose, and lets other threads run."""
    import bcrypt

    try:
        return bcrypt.checkpw(password.encode()[:LONGEST], stored.encode())
    except ValueError:  # what bcrypt cannot take is no password
        return False
