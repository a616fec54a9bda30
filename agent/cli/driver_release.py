"""Release of the driver: whether the process has given it back, and a restart if it cannot."""

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
from agent.model import Snapshot

log = logging.getLogger(__name__)

RELEASE_SECONDS = 10.0
"""Real seconds within which the process must give the driver back. The event thread waits for 2 s;
a call that has not returned by then hangs."""

IN_FORCE = 3600.0
"""Seconds after the last `touch` of the file at which the agent takes the driver again, even though
the file exists: a forgotten file leaves no machine unmonitored."""

NVIDIA_NODES = "/dev/nvidia"


class DriverConfig(Section, frozen=True):
    """The file that asks for the driver; empty for none."""

    table = "driver"
    release_file: str = "/run/dgx-telemetry-release-driver"


def asked_by(config: DriverConfig) -> str:
    """Return the reason for not using the driver; empty while the agent may use it."""
    try:
        age = time.time() - Path(config.release_file).stat().st_mtime
    except (OSError, ValueError):
        return ""
    left_alone = config.release_file and age < IN_FORCE
    return f"the driver is released by {config.release_file}" if left_alone else ""


def device_nodes() -> set[str]:
    opened = set()
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            opened.add(str(number.readlink()))
    maps = Path("/proc/self/maps").read_text(errors="replace")
    mapped = {line.split()[-1] for line in maps.splitlines()}
    return {path for path in opened | mapped if path.startswith(NVIDIA_NODES)}


def module_version() -> str:
    """The version of the kernel module that is loaded; empty if none is."""
    try:
        return Path("/sys/module/nvidia/version").read_text(errors="replace").strip()
    except OSError:
        return ""


@dataclass(slots=True, eq=False)
class DriverRelease:
    """A listener of the poller that restarts this program in the same process: if a thread hangs in
    the driver, or if NVML keeps a device node open after its shutdown. The kernel then closes the
    open files, and the new program finds the file and leaves the driver alone. A replaced driver
    needs a restart too: its old library stays mapped, and no longer answers."""

    asked_back: Callable[[], str]
    clock: Clock
    restart: Callable[[], None] = lambda: None
    held: Callable[[], set[str]] = device_nodes
    version: Callable[[], str] = module_version
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
    """Start this program again in this process; its files and threads end with it."""
    for opened in Path("/proc/self/fd").iterdir():
        if (number := int(opened.name)) > 2:
            with suppress(OSError):  # that of the listing itself
                os.set_inheritable(number, False)
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - itself
    except OSError as error:  # an upgrade has taken it away; execv names no file
        raise OSError(error.errno, error.strerror, sys.executable) from error
