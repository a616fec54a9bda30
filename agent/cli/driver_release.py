"""The driver of a process that was asked to release it: a new process gives back all of it."""

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.config.settings import Section
from agent.errors import LogEvent
from agent.model import Snapshot

log = logging.getLogger(__name__)

IN_FORCE = 3600.0
"""Seconds from the last `touch` of the file until the driver is taken again though it is still
there: a file that was forgotten leaves no machine unmonitored."""


class DriverConfig(Section, frozen=True):
    """The file that asks for the driver; empty for none."""

    table = "driver"
    release_file: str = "/run/dgx-telemetry-release-driver"


def asked_by(config: DriverConfig) -> str:
    """Return the reason for leaving the driver alone, in words; empty while it may be used."""
    try:
        age = time.time() - Path(config.release_file).stat().st_mtime
    except (OSError, ValueError):
        return ""
    left_alone = config.release_file and age < IN_FORCE
    return f"the driver is released by {config.release_file}" if left_alone else ""


@dataclass(slots=True, eq=False)
class DriverRelease:
    """A listener of the poller. This program is started again, in the same process, when its driver
    is asked back: whatever holds it, as a thread that hangs there, or NVML's library after its
    shutdown, ends with the old program. The new one finds the file and touches no driver."""

    asked_back: Callable[[], str]
    restart: Callable[[], None]
    _using: bool = False

    def __call__(self, _: Snapshot) -> None:
        why = self.asked_back()
        if why and self._using:
            log.warning(LogEvent("restarting", why=why))
            self.restart()
        self._using = not why


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
