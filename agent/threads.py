"""Work that may hang or fail, and therefore runs on a separate daemon thread for each task."""

from collections.abc import Callable
from concurrent.futures import Future
from errno import ETIMEDOUT
from threading import Thread
from typing import Protocol, TypeVar

T = TypeVar("T")

FILES_SECONDS = 5.0
"""Timeout in seconds for file systems, because a file system that hangs would block the agent."""


class Spawn(Protocol):
    """Starts work, and returns a future for its result or exception."""

    def __call__(self, name: str, work: Callable[[], T], /) -> Future[T]:
        """Start `work` on a thread with the given name."""


def on_a_thread(name: str, work: Callable[[], T], /) -> Future[T]:
    """Start work on a thread that blocks neither the caller nor the exit of the process."""
    done: Future[T] = Future()
    try:
        Thread(target=_run, args=(done, work), name=name, daemon=True).start()
    except RuntimeError as error:  # no more threads can be started
        done.set_exception(error)
    return done


def at_once(_: str, work: Callable[[], T], /) -> Future[T]:
    """Run work on the thread of the caller, for tests and for work that cannot hang."""
    done: Future[T] = Future()
    _run(done, work)
    return done


def _run(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # raised again in the thread that reads the future
        done.set_exception(error)


def in_time(work: Callable[[], T], seconds: float = FILES_SECONDS) -> T:
    """Return the result of work on files, or raise the exception that the work raised. If the work
    takes longer than `seconds` seconds, raise TimeoutError and abandon the thread."""
    done = on_a_thread("files", work)
    try:
        return done.result(seconds)
    except TimeoutError as error:
        if done.done():  # raised by the file system
            raise
        raise TimeoutError(ETIMEDOUT, f"no answer within {seconds:g} s") from error
