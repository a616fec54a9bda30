"""Masks: recordings never contain serial numbers, UUIDs, host names, or names of people, programs,
or jobs. The same name always has the same mask."""

import re
import threading
import tomllib
from pathlib import Path
from posixpath import basename
from typing import Any

from agent.hardware.processes import DISPATCHING, LAUNCHING

UUID = re.compile(
    r"[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.IGNORECASE
)
MOUNT_FILES = re.compile(r"^/proc/(?:[^/]+/)?(?:mounts|mountinfo|mountstats)$")
REMOTE = re.compile(r"((?:^|\s)//)([^\s/]+)|(^|\s)([^\s/=]+)(?=:/)")
ADDRESS = re.compile(r"(addr=)([^\s,]+)")
_NAMES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SHAPES: dict[str, str] = _NAMES["shapes"]
PROGRAMS, UNTAPED_NAMES = frozenset(_NAMES["programs"]), frozenset(_NAMES["untaped"])

SHORTEST_SECRET = 2
ORDINARY = {"", "localhost", "(none)"}

CGROUPS = "/sys/fs/cgroup/"
OF_PROCESS = re.compile(r"/proc/\d+/(?:task/\d+/)?(comm|stat|status|cgroup)")
NAME_MASKS = {
    "comm": re.compile(r"()(.+)"),
    "stat": re.compile(r"(\d+ \()(.*)(?=\) )", re.DOTALL),
    "status": re.compile(r"^(Name:\t)(.*)", re.MULTILINE),
}
"""Pattern that locates the program name in each file."""
USERS = re.compile(r"^((?:Uid|Gid|Groups):)(.*)", re.MULTILINE)
HOMES = re.compile(r"(/home/|/run/user/|\b[ug]id=)([^/\s,]+)")
GROUP = re.compile(
    r"(?:system|user|machine|init|kubepods[\w-]*)\.(?:slice|scope)|kubepods|burstable|besteffort|"
    r"pod[0-9a-f-]{36}|user|step_\w+|task_\w+|(?:.+_)?slurmstepd\.scope|slurm(?:_.+)?|unified|"
    r"(?:io|cpu|cpuset|cpuacct|memory|devices|blkio|cgroup)(?:\.[a-z_.]+)?|cpu,cpuacct|"
)
"""Components of a control group path that identify neither a person nor a job."""
PART = re.compile(r"([a-z]+[_@-])?(.*?)(\.slice|\.scope|\.service)?")

HOST_NAME_FILES = frozenset({"/proc/sys/kernel/hostname", "/etc/hostname"})


def untaped(path: str) -> bool:
    return path in HOST_NAME_FILES or basename(path) in UNTAPED_NAMES


class Masks:
    """The masks of a recording; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._masks: dict[tuple[str, str], str] = {}
        self._secrets: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def uuid(self, text: str) -> str:
        """Return, for example, `GPU-00000000-0000-0000-0000-000000000001`. Prefixes are kept."""
        if UUID.search(text):
            return UUID.sub(self._uuid, text)
        return "GPU-" + self._mask("uuid", text)

    def serial(self, text: str) -> str:
        mask = self._mask("serial", text)
        self._learn(text, mask)
        return mask

    def host_name(self, text: str) -> None:
        name = text.strip()
        for part in (name, name.partition(".")[0]):
            if part not in ORDINARY:
                self._learn(part, self._mask("host", part))

    def text(self, text: str) -> str:
        """Return the text with masks for UUIDs, serial numbers, and host names."""
        masked = UUID.sub(self._uuid, text)
        pattern = self._pattern
        return pattern.sub(lambda found: self._secrets[found[0]], masked) if pattern else masked

    def path(self, path: str) -> str:
        if path.startswith(CGROUPS):
            return CGROUPS + self.group(self.text(path.removeprefix(CGROUPS)))
        return self.text(path)

    def group(self, path: str) -> str:
        return "/".join(map(self._part, path.split("/")))

    def of_process(self, path: str, text: str) -> str:
        """Return the contents of a file of a process with masks for its program, user, and job. All
        other files are unchanged."""
        found = OF_PROCESS.fullmatch(path)
        if found is None:
            return text
        if found[1] == "cgroup":
            lines = (line.rpartition(":") for line in text.splitlines())
            return "".join(f"{head}:{self.group(group)}\n" for head, _, group in lines)
        text = NAME_MASKS[found[1]].sub(
            lambda m: m[1] + self._program(m[2]),
            text,
            count=1,
        )
        return USERS.sub(lambda m: m[1] + re.sub(r"\d+", self._user, m[2]), text)

    def _program(self, name: str) -> str:
        ordinary = name in PROGRAMS or name.startswith((LAUNCHING, DISPATCHING))
        return name if ordinary else self._mask("program", name)

    def _user(self, found: re.Match[str]) -> str:
        return found[0] if found[0] == "0" else self._mask("user", found[0])

    def _part(self, part: str) -> str:
        found = PART.fullmatch(part)
        if GROUP.fullmatch(part) or found is None:
            return part
        head, name, tail = (group or "" for group in found.groups())
        if head in ("uid_", "user-", "user@"):
            return head + re.sub(r"^\d+$", self._user, name) + tail
        if head in ("job_", "session-") or len(name) == 64:
            return head + self._mask("container" if len(name) == 64 else "number", name) + tail
        return self._mask("unit", part.removesuffix(tail)) + tail

    def mounts(self, text: str) -> str:
        """Return a mount table with masks for users and for names and addresses of file servers."""
        lines = (REMOTE.sub(self._server, line) for line in text.splitlines(keepends=True))
        masked = "".join(ADDRESS.sub(self._server, line) for line in lines)
        return HOMES.sub(lambda found: found[1] + self._mask("unit", found[2]), masked)

    def _server(self, found: re.Match[str]) -> str:
        before, name = (group for group in found.groups() if group is not None)
        return str(before) + self._mask("host", name)

    def _uuid(self, found: re.Match[str]) -> str:
        return self._mask("uuid", found[0].lower().replace("_", "-")).replace("-", found[1])

    def _mask(self, kind: str, secret: str) -> str:
        with self._lock:
            if (kind, secret) not in self._masks:
                number = 1 + sum(1 for known, _ in self._masks if known == kind)
                self._masks[kind, secret] = SHAPES[kind].format(number)
            return self._masks[kind, secret]

    def _learn(self, secret: str, mask: str) -> None:
        with self._lock:
            if len(secret) < SHORTEST_SECRET or secret in self._secrets:
                return
            self._secrets = {**self._secrets, secret: mask}
            longest_first = sorted(map(re.escape, self._secrets), key=len, reverse=True)
            self._pattern = re.compile(rf"(?<![^\W_])(?:{'|'.join(longest_first)})(?![^\W_])")
