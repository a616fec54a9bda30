"""A load: a function of its marks, and what is known of it beforehand. No PyTorch here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.hardware.traced.marks import Marks

SERVER = 27.0
"""Seconds until a job may be seen to be a server: its first half minute is no evidence."""


@dataclass(frozen=True, slots=True)
class Load:
    """`function` sets up, warms up, calls `marks.steady()` and repeats its steps while
    `marks.going()`. One process a GPU: with two, `torch.distributed` finds RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT in the environment, and each process sees its own GPU alone, as
    device 0."""

    function: Callable[[Marks], None]
    gpus: int = 1
    healthy: bool = False  # next to nothing is lost
    regular: bool = True  # its steps take the same time
    settles: float = 6.0  # s of its steady phase before it is judged
    seconds: float = 12.0  # s for which it is judged
    environment: Mapping[str, str] = field(default_factory=dict)
