"""How far a command is: reported on standard error for as long as something takes."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

ON_TERMINAL, ELSEWHERE = 1.0, 5.0
"""Seconds between two lines; what is over before the first needs none."""

WIPE = "\r\033[K"


@contextmanager
def progress(text: str, how_far: Callable[[], str] = str) -> Iterator[None]:
    """Report the text, how far the block is, and its seconds: on a terminal in one line, which is
    gone at the end. `how_far` is called from another thread; empty: only the seconds are shown."""
    over = Event()
    telling = Thread(target=_tell, args=(text, how_far, over), daemon=True)
    telling.start()
    try:
        yield
    finally:
        over.set()
        telling.join()


def _tell(text: str, how_far: Callable[[], str], over: Event) -> None:
    began, stream = time.monotonic(), sys.stderr
    with suppress(OSError, ValueError):  # closed, or a terminal that is gone
        terminal = stream.isatty()
        while not over.wait(ON_TERMINAL if terminal else ELSEWHERE):
            far = how_far() or f"{time.monotonic() - began:.0f} s"
            line = f"{text}: {far}"
            # The cursor waits at the beginning: what is printed next begins a line of its own.
            stream.write(f"{WIPE}{line}\r" if terminal else f"{line}\n")
            stream.flush()
        if terminal:
            stream.write(WIPE)
            stream.flush()
