"""Runs functions that may hang or fail, each on its own daemon thread."""

from collections.abc import Callable
from concurrent.futures import Future
from errno import ETIMEDOUT
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
Spawn = Callable[[str, Callable[[], Any]], Future[Any]]
"""A function that calls `work` on a thread with the given name, and returns its future."""


def on_a_thread(name: str, work: Callable[[], T], /) -> Future[T]:
    """Call `work` on a new daemon thread, which blocks neither the caller nor the exit."""
    done: Future[T] = Future()
    try:
        Thread(target=_run, args=(done, work), name=name, daemon=True).start()
    except RuntimeError as error:  # no more threads can be started
        done.set_exception(error)
    return done


def at_once(_: str, work: Callable[[], T], /) -> Future[T]:
    """Call `work` on the caller's thread. Use this only in tests or if it cannot hang."""
    done: Future[T] = Future()
    _run(done, work)
    return done


def _run(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # raised again in the thread that reads the future
        done.set_exception(error)


def in_time(work: Callable[[], T], seconds: float = 5.0) -> T:
    """Call `work` on another thread, and return its result or raise its exception. If it takes
    longer than `seconds`, raise TimeoutError, and leave its thread running."""
    done = on_a_thread("files", work)
    try:
        return done.result(seconds)
    except TimeoutError as error:
        if done.done():  # raised by the file system
            raise
        raise TimeoutError(ETIMEDOUT, f"no answer within {seconds:g} s") from error
