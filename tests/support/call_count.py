"""Counts function calls: a measure of work that does not depend on how busy the machine is."""

import gc
import sys
from collections.abc import Callable
from types import FrameType


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, that `work` makes on this thread. An idle core
    makes some 3 million of them a second."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # what other tests left behind is not this work's
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count
