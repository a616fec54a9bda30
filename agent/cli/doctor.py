"""A look at a machine in a child process, which is left behind if the driver hangs."""

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
"""Most seconds that a check takes on a healthy, idle machine."""

CHUNK = 65536

Answer = dict[str, Any]
WRONG_INPUT, BROKEN = "wrong_input", "broken"


def in_child(look: Callable[[], Answer], timeout: float) -> Answer | None:
    """Run `look` in a child process and return its answer. Without an answer in time the result is
    None, or BROKEN if the child waited for a processor for half of the time.

    The child keeps no file of this process open, so that a reader of the output does not wait for a
    driver that hangs. Raises BadInput as `look` does; any other failure is BROKEN.
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
    os.kill(child, signal.SIGKILL)  # not waited for: a call into the kernel may hang
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
    """Write the answer of `look` to the pipe and exit without waiting for any thread; in the
    child."""
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
    """Return the seconds for which threads of the process were ready to run and had no processor.
    The look runs on several threads in turn, so their waits add up. The kernel counts a wait once
    it has ended: a thread that is ready now has waited whenever it did not run."""
    waited = 0.0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            ran, queued = (int(word) / 1e9 for word in path.read_text().split()[:2])
            state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
            waited += max(queued, elapsed - ran) if state == "R" else queued
    return waited
