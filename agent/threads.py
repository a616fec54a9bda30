"""Work that may hang or fail, each on a daemon thread of its own."""

from collections.abc import Callable
from concurrent.futures import Future
from errno import ETIMEDOUT
from threading import Thread
from typing import Protocol, TypeVar

T = TypeVar("T")

FILES_SECONDS = 5.0
"""Seconds for a file system to answer: a file system that hangs would hold up start and end."""


class Spawn(Protocol):
    """Starts work, and returns the future of its result or of whatever it raises."""

    def __call__(self, name: str, work: Callable[[], T], /) -> Future[T]:
        """`name` is the name of the thread."""


def on_a_thread(name: str, work: Callable[[], T], /) -> Future[T]:
    """Start work on a thread that holds up neither the caller nor the end of the process."""
    done: Future[T] = Future()
    try:
        Thread(target=_run, args=(done, work), name=name, daemon=True).start()
    except RuntimeError as error:  # no further thread may be started
        done.set_exception(error)
    return done


def at_once(_: str, work: Callable[[], T], /) -> Future[T]:
    """Do the work on the caller's own thread: it cannot hang, or this is a test."""
    done: Future[T] = Future()
    _run(done, work)
    return done


def _run(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # for the thread that asks the future
        done.set_exception(error)


def in_time(work: Callable[[], T], seconds: float = FILES_SECONDS) -> T:
    """Return the result of work on files, or raise its error; TimeoutError after this many seconds.
    Then its thread is left behind."""
    done = on_a_thread("files", work)
    try:
        return done.result(seconds)
    except TimeoutError as error:
        if done.done():  # the file system's own
            raise
        raise TimeoutError(ETIMEDOUT, f"no answer within {seconds:g} s") from error
