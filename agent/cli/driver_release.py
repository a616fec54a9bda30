"""Releases the NVIDIA driver on request, and restarts the program if the driver remains in use."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.clock import Clock
from agent.config.settings import Section
from agent.errors import LogEvent, log
from agent.hardware.files import RealFiles, text_or_nothing
from agent.model import Snapshot

RELEASE_SECONDS = 10.0
"""Time limit in seconds for releasing the driver. The thread for NVML events takes up to 2 s, so a
much longer delay means that a call hangs."""

IN_FORCE = 3600.0
"""The release file is ignored if it has not been modified for this many seconds. Therefore, a
forgotten file does not disable monitoring permanently."""

NVIDIA_NODES = "/dev/nvidia"


class DriverConfig(Section, frozen=True):
    """Settings for releasing the driver. The agent does not use the driver while `release_file`
    exists, for at most IN_FORCE seconds. If the path is empty, it always uses the driver."""

    table = "driver"
    release_file: str = "/run/dgx-telemetry-release-driver"


def asked_by(config: DriverConfig) -> str:
    """Return why the agent must not use the driver, or an empty string if it may use it."""
    try:
        age = time.time() - Path(config.release_file).stat().st_mtime
    except (OSError, ValueError):
        return ""
    left_alone = config.release_file and age < IN_FORCE
    return f"the driver is released by {config.release_file}" if left_alone else ""


def device_nodes() -> set[str]:
    opened = set()
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor for listing this directory
            opened.add(str(number.readlink()))
    maps = Path("/proc/self/maps").read_text(errors="replace")
    mapped = {line.split()[-1] for line in maps.splitlines()}
    return {path for path in opened | mapped if path.startswith(NVIDIA_NODES)}


@dataclass(slots=True, eq=False)
class DriverRelease:
    """Requests a restart of this program if NVML still has a device node open after a release, for
    example because a call hangs. A restart closes all files. After it, the program does not load
    NVML while the driver must stay released. Also requests a restart if the driver was replaced,
    because the old library no longer works. It is called after each tick."""

    asked_back: Callable[[], str]
    clock: Clock
    restart: Callable[[], None] = lambda: None
    held: Callable[[], set[str]] = device_nodes
    version: Callable[[], str] = lambda: text_or_nothing(RealFiles(), "/sys/module/nvidia/version")
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
    """Replace this process with a new run of the same program, without open files and threads."""
    for opened in Path("/proc/self/fd").iterdir():
        if (number := int(opened.name)) > 2:
            with suppress(OSError):  # the descriptor for listing this directory
                os.set_inheritable(number, False)
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - itself
    except OSError as error:  # the interpreter may be removed by an upgrade
        raise OSError(error.errno, error.strerror, sys.executable) from error
