"""Releases the NVIDIA driver on request, and restarts the program if the driver remains in use."""

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.clock import Clock
from agent.config.settings import Section
from agent.errors import LogEvent
from agent.hardware.files import RealFiles, text_or_nothing
from agent.model import Snapshot

log = logging.getLogger(__name__)

RELEASE_SECONDS = 10.0
"""Wall-clock seconds within which the process must release the driver. The event thread waits at
most 2 s, so any call that takes longer than this limit is considered hung."""

IN_FORCE = 3600.0
"""Seconds after the last `touch` of the release file until the agent uses the driver again, even if
the file still exists. This prevents a forgotten file from leaving the machine unmonitored."""

NVIDIA_NODES = "/dev/nvidia"


class DriverConfig(Section, frozen=True):
    """Configuration of driver release. The release is requested by creating `release_file`; an
    empty path disables the feature."""

    table = "driver"
    release_file: str = "/run/dgx-telemetry-release-driver"


def asked_by(config: DriverConfig) -> str:
    """Return the reason for not using the driver, or an empty string if it may be used."""
    try:
        age = time.time() - Path(config.release_file).stat().st_mtime
    except (OSError, ValueError):
        return ""
    left_alone = config.release_file and age < IN_FORCE
    return f"the driver is released by {config.release_file}" if left_alone else ""


def device_nodes() -> set[str]:
    opened = set()
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # descriptor of the directory listing itself
            opened.add(str(number.readlink()))
    maps = Path("/proc/self/maps").read_text(errors="replace")
    mapped = {line.split()[-1] for line in maps.splitlines()}
    return {path for path in opened | mapped if path.startswith(NVIDIA_NODES)}


MODULE_VERSION = "/sys/module/nvidia/version"
"""The version of the loaded kernel module. The file is missing if none is loaded."""


@dataclass(slots=True, eq=False)
class DriverRelease:
    """Poller listener that re-executes this program if a thread hangs in the driver or if NVML
    keeps a device node open after shutdown. The kernel then closes all open files, and the new
    program finds the release file and does not load the driver. It also restarts after the driver
    has been replaced, because the old library stays mapped and no longer works."""

    asked_back: Callable[[], str]
    clock: Clock
    restart: Callable[[], None] = lambda: None
    held: Callable[[], set[str]] = device_nodes
    version: Callable[[], str] = lambda: text_or_nothing(RealFiles(), MODULE_VERSION)
    _since: float | None = None
    _before: str = ""
    _checked: bool = False

    def __call__(self, _: Snapshot) -> None:
        now = self.clock.monotonic()
        if not self.asked_back():
            if self._since is not None and self.version() != self._before:
                self._begin_again("the driver was replaced")
            self._since = None
        elif self._since is None:
            self._since, self._before, self._checked = now, self.version(), False
        elif not self._checked and now - self._since > RELEASE_SECONDS * self.clock.speed:
            self._checked = True
            if held := self.held():
                self._begin_again(f"{' '.join(sorted(held))} still open")

    def _begin_again(self, why: str) -> None:
        log.warning(LogEvent("restarting", why=why))
        self.restart()


def execute_again() -> None:
    """Re-execute this program in the same process, which closes its files and ends its threads."""
    for opened in Path("/proc/self/fd").iterdir():
        if (number := int(opened.name)) > 2:
            with suppress(OSError):  # descriptor of the directory listing itself
                os.set_inheritable(number, False)
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - itself
    except OSError as error:  # removed by an upgrade; execv does not report the path
        raise OSError(error.errno, error.strerror, sys.executable) from error
