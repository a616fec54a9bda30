"""Masks: serials, UUIDs and host names never reach a tape; the same one gets the same mask."""

import re
import threading
from posixpath import basename

UUID = re.compile(
    r"[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.IGNORECASE
)
UNDASHED = re.compile("(.{8})(.{4})(.{4})(.{4})(.{12})")
MOUNTS = re.compile(r"^/proc/(?:[^/]+/)?(?:mounts|mountinfo|mountstats)$")
REMOTE = re.compile(r"((?:^|\s)//)([^\s/]+)|(^|\s)([^\s/=]+)(?=:/)")
ADDRESS = re.compile(r"(addr=)([^\s,]+)")
SHAPES = {
    "uuid": "00000000-0000-0000-0000-{:012x}",
    "serial": "{:013d}",
    "host": "host-{:03d}",
}

SHORTEST_SECRET = 2
ORDINARY = {"", "localhost", "(none)"}

HOST_NAME_FILES = frozenset({"/proc/sys/kernel/hostname", "/etc/hostname"})
UNTAPED_NAMES = frozenset(
    {
        *("address", "boot_id", "cmdline", "environ", "machine-id", "node_guid", "sys_image_guid"),
        *("product_serial", "product_uuid", "board_serial", "board_asset_tag"),
        *("chassis_serial", "chassis_asset_tag", "serial", "serial_number", "uuid", "wwid"),
    }
)
"""Files of these names identify a machine or hold a user's secrets, and no metric needs them."""


def untaped(path: str) -> bool:
    """Whether the content of this file must not reach a tape."""
    return path in HOST_NAME_FILES or basename(path) in UNTAPED_NAMES


class Masks:
    """The masks of one recording; from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._masks: dict[tuple[str, str], str] = {}
        self._secrets: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def uuid(self, text: str) -> str:
        """`GPU-00000000-0000-0000-0000-000000000001`; other prefixes stay as they are."""
        if UUID.search(text):
            return UUID.sub(self._uuid, text)
        return "GPU-" + self._mask("uuid", text)

    def uuid_bytes(self, value: list[int]) -> list[int]:
        """The 16 bytes of a UUID; all zero means that there is none, and stays."""
        if not any(value):
            return value
        mask = self._mask("uuid", UNDASHED.sub(r"\1-\2-\3-\4-\5", bytes(value).hex()))
        return list(bytes.fromhex(mask.replace("-", "")))

    def serial(self, text: str) -> str:
        """Thirteen digits, as NVIDIA's serials have."""
        mask = self._mask("serial", text)
        self._learn(text, mask)
        return mask

    def host_name(self, text: str) -> None:
        """Keep this name, and its part before the first dot, off the tape."""
        name = text.strip()
        for part in (name, name.partition(".")[0]):
            if part not in ORDINARY:
                self._learn(part, self._mask("host", part))

    def text(self, text: str) -> str:
        """Any text without UUIDs, serials and host names."""
        masked = UUID.sub(self._uuid, text)
        pattern = self._pattern
        return pattern.sub(lambda found: self._secrets[found[0]], masked) if pattern else masked

    def mounts(self, text: str) -> str:
        """A table of mounts without the names and addresses of file servers."""
        return "".join(map(self._mount, text.splitlines(keepends=True)))

    def _mount(self, line: str) -> str:
        return ADDRESS.sub(self._server, REMOTE.sub(self._server, line))

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
