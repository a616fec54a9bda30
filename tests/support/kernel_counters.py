"""A counter of the kernel, read just before and just after the agent reads it: however late on a
busy machine, what the agent says must lie between."""

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Mark(NamedTuple):
    """Two readings of a counter with their times in seconds."""

    before: tuple[float, float]
    after: tuple[float, float]


class Between(NamedTuple):
    """Bounds on the time and the counts between two readings of the agent: at least and at most."""

    seconds: tuple[float, float]
    counted: tuple[float, float]

    @property
    def rate(self) -> tuple[float, float]:
        """Counted in a second."""
        return self.counted[0] / self.seconds[1], self.counted[1] / self.seconds[0]


def marked(read: Callable[[], T], counter: Callable[[], float]) -> tuple[T, Mark]:
    """A reading of the agent between two readings of a counter."""
    before = time.monotonic(), counter()
    found = read()
    return found, Mark(before, (time.monotonic(), counter()))


def between(earlier: Mark, later: Mark) -> Between:
    near, far = (
        [b - a for a, b in zip(*ends, strict=True)]
        for ends in ((earlier.after, later.before), (earlier.before, later.after))
    )
    return Between((near[0], far[0]), (near[1], far[1]))
