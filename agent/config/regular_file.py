"""Files that a configuration names: regular ones only, of bounded size, and not waited for without
end.

A FIFO would keep its reader until somebody writes, a device might never end, and a file system of
the network can hang in any call, also in one that only looks.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future
from errno import EFBIG, EINVAL, EISDIR, ETIMEDOUT
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

TIMEOUT = 5.0
"""Seconds for all the files of one configuration."""


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes; raises OSError, whose `strerror` says
    what is wrong. It waits for the file system, but not for who might write."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # a NUL, or half a character
        raise OSError(EINVAL, "no file can have this name") from error
    try:
        mode = os.fstat(handle).st_mode
        if S_ISDIR(mode):
            raise OSError(EISDIR, os.strerror(EISDIR))
        if not S_ISREG(mode):
            raise OSError(EINVAL, "it is not a regular file")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(handle)
    if len(content) > most:
        raise OSError(EFBIG, f"it has more than {most} bytes")
    return content


def in_time(work: Callable[[], T], seconds: float = TIMEOUT) -> T:
    """Return the result of `work`, or raise its error; TimeoutError after this many seconds.

    Then its thread is left behind: it keeps neither the caller nor the end of the process.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # raised in the caller's thread
            done.set_exception(error)

    Thread(target=run, name="files", daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError as error:
        if done.done():  # the file system's own
            raise
        raise TimeoutError(ETIMEDOUT, f"no answer within {seconds:g} s") from error
