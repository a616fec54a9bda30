"""Runs a check in a child process. If the child does not finish in time, it is killed."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from agent.errors import BadInput, Failure

Answer = dict[str, Any]
WRONG_INPUT, BROKEN = "wrong_input", "broken"


def in_child(look: Callable[[], Answer], timeout: float) -> Answer | None:
    """Run `look` in a child process, and return its result. After `timeout` seconds, return None,
    or a BROKEN result if the process waited for a CPU for at least half of the time.

    The child process closes its output, so that a pipe from this program does not stay open while a
    driver hangs. If `look` raises BadInput, raise it. Return other exceptions as a BROKEN result.
    """
    began = time.monotonic()
    _interrupts(signal.SIG_BLOCK)  # Python ignores exceptions in functions that run at a fork
    try:
        reading, writing = Pipe(duplex=False)
        child = os.fork()
    except OSError as error:
        _interrupts(signal.SIG_UNBLOCK)
        return {BROKEN: str(Failure.of(error))}
    if not child:
        reading.close()  # otherwise, a write would block forever after this process has ended
        _answer(look, writing)
    writing.close()
    try:
        _interrupts(signal.SIG_UNBLOCK)
        raw = reading.recv_bytes() if reading.poll(timeout) else None
    except (EOFError, OSError):  # nothing, or only the beginning
        raw = b""
    finally:  # also after Ctrl-C
        delay = _delay(child, time.monotonic() - began)
        os.kill(child, signal.SIGKILL)  # do not wait for the exit: it may be stuck in a kernel call
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


def _interrupts(how: int) -> None:
    """Block or unblock Ctrl-C."""
    signal.pthread_sigmask(how, [signal.SIGINT])


def _answer(look: Callable[[], Answer], writing: Connection) -> None:
    """In the child process, write the result of `look` to `writing`, and exit with all threads."""
    try:
        _interrupts(signal.SIG_UNBLOCK)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):
            os.dup2(nothing, number)
        answer = look()
    except BadInput as error:
        answer = {WRONG_INPUT: str(error)}
    except (Exception, KeyboardInterrupt) as error:  # reported by the parent process
        answer = {BROKEN: str(Failure.of(error))}
    with suppress(OSError):  # the parent process has ended
        writing.send_bytes(json.dumps(answer).encode())
    os._exit(0)


def _delay(process: int, elapsed: float) -> float:
    """Return the sum of the seconds for which each thread of a process waited for a CPU. The
    threads of a check run one after another. The kernel counts a wait when it ends, so a thread
    that waits now is assumed to have waited for the part of `elapsed` in which it did not run."""
    waited = 0.0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            ran, queued = (int(word) / 1e9 for word in path.read_text().split()[:2])
            state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
            waited += max(queued, elapsed - ran) if state == "R" else queued
    return waited
