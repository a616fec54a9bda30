"""Runs work that may hang or fail. Each task has its own daemon thread."""

from collections.abc import Callable
from concurrent.futures import Future
from errno import ETIMEDOUT
from threading import Thread
from typing import Protocol, TypeVar

T = TypeVar("T")

FILES_SECONDS = 5.0
"""Timeout in seconds for file access, because a file system may hang and block the agent."""


class Spawn(Protocol):
    """A function that starts work, and returns a future for its result or exception."""

    def __call__(self, name: str, work: Callable[[], T], /) -> Future[T]:
        """Start `work` on a thread with the given name."""


def on_a_thread(name: str, work: Callable[[], T], /) -> Future[T]:
    """Start work on a thread. The work blocks neither the caller nor the exit of the process."""
    done: Future[T] = Future()
    try:
        Thread(target=_run, args=(done, work), name=name, daemon=True).start()
    except RuntimeError as error:  # no more threads can be started
        done.set_exception(error)
    return done


def at_once(_: str, work: Callable[[], T], /) -> Future[T]:
    """Run work on the caller's thread. Use this only for tests and for work that cannot hang."""
    done: Future[T] = Future()
    _run(done, work)
    return done


def _run(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # raised again in the thread that reads the future
        done.set_exception(error)


def in_time(work: Callable[[], T], seconds: float = FILES_SECONDS) -> T:
    """Run work that accesses files, and return its result or raise its exception. If the work takes
    longer than `seconds`, raise TimeoutError and abandon its thread."""
    done = on_a_thread("files", work)
    try:
        return done.result(seconds)
    except TimeoutError as error:
        if done.done():  # raised by the file system
            raise
        raise TimeoutError(ETIMEDOUT, f"no answer within {seconds:g} s") from error
