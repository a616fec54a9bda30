"""Runs checks in a child process, which is abandoned if the driver hangs."""

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.errors import BadInput, Failure

SHORTEST_TIMEOUT = 3.0
"""Minimum timeout in seconds; a check of a healthy, idle machine never takes longer."""

CHUNK = 65536

Answer = dict[str, Any]
WRONG_INPUT, BROKEN = "wrong_input", "broken"


def in_child(look: Callable[[], Answer], timeout: float) -> Answer | None:
    """Run `look` in a child process and return its result. If the child does not finish in time,
    return None, or a BROKEN result if it spent half of the time waiting for a CPU.

    The child redirects its standard output and error to /dev/null, so a reader of the output never
    waits for a hung driver. Raise BadInput if `look` does; return any other failure as BROKEN.
    """
    began = time.monotonic()
    try:
        reading, writing = os.pipe()
        child = os.fork()
    except OSError as error:
        return {BROKEN: str(Failure.of(error))}
    if not child:
        os.close(reading)
        _answer(look, writing)
    os.close(writing)
    raw = _read(reading, began + timeout)
    delay = _delay(child, time.monotonic() - began)
    os.kill(child, signal.SIGKILL)  # do not wait for it to exit: it may be stuck in a kernel call
    os.waitpid(child, os.WNOHANG)
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


def _answer(look: Callable[[], Answer], writing: int) -> None:
    """Write the result of `look` to the pipe, then exit without waiting for any thread. Runs in the
    child process."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):
            os.dup2(nothing, number)
        answer = look()
    except BadInput as error:
        answer = {WRONG_INPUT: str(error)}
    except Exception as error:  # reported by the parent
        answer = {BROKEN: str(Failure.of(error))}
    with open(writing, "wb") as pipe:
        pipe.write(json.dumps(answer).encode())
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


def _delay(process: int, elapsed: float) -> float:
    """Return the total seconds that the threads of the process were runnable but had no CPU. Since
    the check's threads run in turn, their waiting times add up. The kernel counts a wait only after
    it ends, so a currently runnable thread is assumed to have waited whenever it did not run."""
    waited = 0.0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            ran, queued = (int(word) / 1e9 for word in path.read_text().split()[:2])
            state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
            waited += max(queued, elapsed - ran) if state == "R" else queued
    return waited
