"""Masks replace serial numbers, UUIDs, host names, and names of users, jobs, and uncommon programs
in recordings. The same name has the same mask throughout a recording."""

import re
import threading
from functools import partial
from posixpath import basename
from typing import Any

from agent.hardware.processes import DISPATCHING, LAUNCHING
from agent.metrics import beside

UUID = re.compile(
    r"[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.IGNORECASE
)
_NAMES: dict[str, Any] = beside(__file__)
PROGRAMS, UNTAPED_NAMES = frozenset(_NAMES["programs"]), frozenset(_NAMES["untaped"])

CGROUPS = "/sys/fs/cgroup/"
GROUP = re.compile("|".join(_NAMES["group"]))

HOST_NAME_FILES = frozenset({"/proc/sys/kernel/hostname", "/etc/hostname"})


def untaped(path: str) -> bool:
    return path in HOST_NAME_FILES or basename(path) in UNTAPED_NAMES


class Masks:
    """Replaces names in a recording with masks. Several threads may use the same object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._masks: dict[tuple[str, str], str] = {}
        self._secrets: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def uuid(self, text: str) -> str:
        """Return the mask of a UUID, such as `GPU-00000000-0000-0000-0000-000000000001`."""
        if UUID.search(text):
            return UUID.sub(self._uuid, text)
        return "GPU-" + self._mask("uuid", text)

    def serial(self, text: str) -> str:
        mask = self._mask("serial", text)
        self._learn(text, mask)
        return mask

    def address(self, text: str) -> str:
        """Return the mask of an IP address, unless it is that of loopback or of any host."""
        plain = text in ("0.0.0.0", "::", "::1") or text.startswith("127.")
        return text if plain else self._mask("host", text)

    def host_name(self, text: str) -> None:
        name = text.strip()
        for part in (name, name.partition(".")[0]):
            if part not in ("", "localhost", "(none)"):
                self._learn(part, self._mask("host", part))

    def text(self, text: str) -> str:
        """Mask UUIDs, serial numbers, and host names in a string."""
        masked = UUID.sub(self._uuid, text)
        pattern = self._pattern
        return pattern.sub(lambda found: self._secrets[found[0]], masked) if pattern else masked

    def path(self, path: str) -> str:
        if path.startswith(CGROUPS):
            path = CGROUPS + self.group(path.removeprefix(CGROUPS))
        return self.text(path)

    def group(self, path: str) -> str:
        return "/".join(map(self._part, path.split("/")))

    def contents(self, path: str, text: str) -> str:
        """Mask the contents of a file, including names of programs, users, jobs, and servers."""
        for files, names, kind in _NAMES["contents"]:
            if re.fullmatch(files, path):
                text = re.sub(names, partial(self._name, kind), text)
        return self.text(text)

    def _name(self, kind: str, found: re.Match[str]) -> str:
        name = found[0]
        if kind == "group":
            return self.group(name)
        if kind == "user":
            return self._users(name)
        ordinary = name in PROGRAMS or name.startswith((LAUNCHING, DISPATCHING))
        return name if kind == "program" and ordinary else self._mask(kind, name)

    def _users(self, text: str) -> str:
        return re.sub(r"\d+", lambda number: self._mask("user", number[0]), text)

    def _part(self, part: str) -> str:
        found = re.fullmatch(r"([a-z]+[_@-])?(.*?)(\.slice|\.scope|\.service)?", part)
        if GROUP.fullmatch(part) or found is None:
            return part
        head, name, tail = (group or "" for group in found.groups())
        if head in ("uid_", "user-", "user@"):
            return head + self._users(name) + tail
        if head in ("job_", "session-") or len(name) == 64:
            return head + self._mask("container" if len(name) == 64 else "number", name) + tail
        return self._mask("unit", part.removesuffix(tail)) + tail

    def _uuid(self, found: re.Match[str]) -> str:
        return self._mask("uuid", found[0].lower().replace("_", "-")).replace("-", found[1])

    def _mask(self, kind: str, secret: str) -> str:
        if (kind, secret) == ("user", "0"):
            return secret
        with self._lock:
            if (kind, secret) not in self._masks:
                number = 1 + sum(1 for known, _ in self._masks if known == kind)
                self._masks[kind, secret] = _NAMES["shapes"][kind].format(number)
            return self._masks[kind, secret]

    def _learn(self, secret: str, mask: str) -> None:
        with self._lock:
            if len(secret) < 2 or secret in self._secrets:
                return
            self._secrets = {**self._secrets, secret: mask}
            longest_first = sorted(map(re.escape, self._secrets), key=len, reverse=True)
            self._pattern = re.compile(rf"(?<![^\W_])(?:{'|'.join(longest_first)})(?![^\W_])")
