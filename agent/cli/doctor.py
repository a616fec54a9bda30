"""One look at a machine in a child process, which is left behind where the driver hangs."""

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.errors import BadInput, described

SHORTEST_TIMEOUT = 3.0
"""Most seconds that a check takes on a healthy, idle machine."""

TIMEOUT = 8.5
"""Seconds from the start of this process, after which the child is left behind."""

CHUNK = 65536
STARTED = 19  # field 22 of proc(5), counted after the name
LEFT_BEHIND = 0.2  # s, for a child that has said all to be gone

Answer = dict[str, Any]
WRONG_INPUT, BROKEN = "wrong_input", "broken"


def in_child(look: Callable[[], Answer], timeout: float = TIMEOUT) -> Answer | None:
    """Return the answer of `look`, run in a child process; None if it gave none in time, although
    it did not wait for a processor for half of that: if all processors are in use, it is BROKEN
    then.

    The child keeps nothing of this process open: who reads our output does not wait for a
    driver that hangs. Raises BadInput as the look did; what else breaks it is reported as BROKEN.
    """
    began = time.monotonic()
    until = began + timeout - running_for()
    try:
        reading, writing = os.pipe()
        child = os.fork()
    except OSError as error:
        return {BROKEN: described(error)}
    if not child:
        os.close(reading)
        _answer(look, writing)
    os.close(writing)
    raw = _read(reading, until)
    delay = _delay(child)
    _leave(child)
    if raw is None:
        starved = f"it waited {delay:.0f} s for a processor; try a longer --timeout"
        return {BROKEN: starved} if delay >= max(1.0, time.monotonic() - began) / 2 else None
    try:
        answer: Answer = json.loads(raw)
    except ValueError:
        return {BROKEN: "the look ended without a word"}
    if WRONG_INPUT in answer:
        raise BadInput(answer[WRONG_INPUT])
    return answer


def running_for() -> float:
    """Seconds since this process was started: those before it could run count for who waits."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[STARTED]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _answer(look: Callable[[], Answer], writing: int) -> None:
    """In the child: look, say, end without waiting for any thread."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):
            os.dup2(nothing, number)
        answer = look()
    except BadInput as error:
        answer = {WRONG_INPUT: str(error)}
    except Exception as error:  # reported by the parent
        answer = {BROKEN: described(error)}
    raw = json.dumps(answer).encode()
    while raw:
        raw = raw[os.write(writing, raw) :]
    os._exit(0)


def _read(reading: int, until: float) -> bytes | None:
    parts: list[bytes] = []
    while (left := until - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            part = os.read(reading, CHUNK)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None


def _delay(process: int) -> float:
    """Seconds for which threads of the process were ready to run and had no processor: a look
    passes from thread to thread, and each may have waited for a part of it."""
    waited = 0.0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            waited += int(path.read_text().split()[1]) / 1e9
    return waited


def _leave(child: int) -> None:
    """Let it go: one whose call into the kernel hangs is not waited for, nor can it be ended."""
    os.kill(child, signal.SIGKILL)
    until = time.monotonic() + LEFT_BEHIND
    while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < until:
        time.sleep(0.01)
