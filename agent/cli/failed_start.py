"""A service that cannot start: systemd starts it again at once, so it ends later each time."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from agent.config.atomic_file import atomic_write
from agent.config.regular_file import read_regular
from agent.errors import BadInput, printable
from agent.service.sd_notify import NotifySocket, status

COUNT = "failed-starts"
"""A file in the folder that systemd keeps for the service until it is stopped."""

LONGEST = 600.0
"""Seconds that a failed start takes at most. Each costs 0.5 s of CPU and nine lines in the journal,
most of them systemd's own."""

STEADY = 60.0
"""Seconds after which what ends the agent was no failed start."""

GLANCE = 1.0


@contextmanager
def slower_each_time(configuration: Path) -> Iterator[None]:
    """Let a start that fails end later than the last one did: at once the first time, then after
    1 s, 2 s, 4 s and so on, or when the file of the configuration changes.

    In the agent, because systemd has RestartSteps= from 254 on only, and its count goes on however
    long the service ran in between (seen with 257): after ten crashes in a year each further one
    would leave the machine unmonitored for ten minutes. `systemctl status` shows the sentence
    meanwhile; `systemctl restart` ends the wait, and the next start fails at once, if it does.
    """
    folder = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    count = Path(folder, COUNT)
    began, before = time.monotonic(), _state(configuration)  # as it was when it was read
    try:
        yield
    except Exception as error:
        if folder:
            with suppress(OSError, BadInput):
                failed = 0 if time.monotonic() - began > STEADY else _counted(count)
                atomic_write(count, str(failed + 1).encode())
                if failed:
                    pause = min(2.0 ** (failed - 1), LONGEST)
                    changed = f"or when {configuration} changes"
                    _wait(
                        pause,
                        f"Cannot start: {error}; tried again within {pause:g} s, {changed}",
                        lambda: _state(configuration) != before,
                        count.unlink,
                    )
        raise
    if folder:
        count.unlink(missing_ok=True)


def _counted(count: Path) -> int:
    try:
        return min(int(read_regular(count, 9)), 64)
    except (OSError, ValueError):
        return 0


def _wait(
    seconds: float, sentence: str, changed: Callable[[], bool], forget: Callable[[], None]
) -> None:
    def ended(_signal: int, _frame: FrameType | None) -> None:
        forget()
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, ended)
    until = time.monotonic() + seconds
    longer = f"EXTEND_TIMEOUT_USEC={round((seconds + STEADY) * 1e6)}"
    NotifySocket.of().send(status(printable(sentence)), longer)
    while time.monotonic() < until:
        time.sleep(min(GLANCE, seconds))
        if changed():
            forget()
            return


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
