"""Pieces of work of known length that the loads are made of."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from tests.hardware.device import DEVICE, synchronize

Value = TypeVar("Value")


def sized(on_gpu: Value, without: Value) -> Value:
    """A size for a GPU, and one that lets a load be tried without."""
    return on_gpu if DEVICE == "cuda" else without


class Products:
    """Dense products of bf16 matrices; `mixed` adds a pass over memory after each."""

    def __init__(self, *, mixed: bool = False) -> None:
        side = sized(8192, 256)
        self._left, self._right, self._out = (
            torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)
        )
        self._mixed = mixed

    def run(self, count: int) -> None:
        """Launch so many."""
        for _ in range(count):
            torch.matmul(self._left, self._right, out=self._out)
            if self._mixed:
                torch.nn.functional.gelu(self._out)


def length_of(piece: Callable[[], Any], least: float = 0.6, at_once: int = 1) -> float:
    """Seconds that one of these takes when many follow each other, warm.

    `at_once`: so many of them between two waits. Ranks that wait for each other must not measure
    a time of their own: for them there is `length_together`.
    """
    for _ in range(2):
        piece()
    synchronize()
    start, done = time.monotonic(), 0
    while time.monotonic() - start < least:
        for _ in range(at_once):
            piece()
        synchronize()
        done += at_once
    return (time.monotonic() - start) / done


def length_together(piece: Callable[[], Any], count: int) -> float:
    """Seconds that one of these takes when all ranks do so many."""
    piece()
    synchronize()
    dist.barrier()
    synchronize()
    start = time.monotonic()
    for _ in range(count):
        piece()
    synchronize()
    return (time.monotonic() - start) / count


def agreed(value: float) -> float:
    """The first rank's value, on all ranks."""
    shared = torch.tensor([value], dtype=torch.float64, device=DEVICE)
    dist.broadcast(shared, 0)
    return float(shared.item())


def count_of(seconds: float, each: float) -> int:
    """Return the number of pieces that fill so many seconds: the same on all ranks, one at
    least."""
    return max(1, round(agreed(seconds / each)))
