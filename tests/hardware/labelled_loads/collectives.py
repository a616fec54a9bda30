"""Loads of several ranks that compute, then exchange, in the open or behind each other's back."""

import time
from typing import Any

import torch
import torch.distributed as dist

from tests.hardware.device import DEVICE
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, NVLINK, PEER, UNKNOWN
from tests.hardware.labelled_loads.work import Products, count_of, length_of, length_together, sized

EXCHANGED = 256 << 20
"""Bytes of one exchange."""

ACTIVATIONS = 64 << 20
"""Bytes that one stage sends to the next."""


class Exchange:
    """All-reduces of one buffer. The greatest value wins: the numbers stay finite."""

    def __init__(self) -> None:
        self._data = torch.rand(sized(EXCHANGED, 1 << 20) // 4, device=DEVICE)
        self._token = torch.zeros(1, device=DEVICE)

    def run(self, count: int) -> None:
        """Launch so many, one after the other."""
        for _ in range(count):
            dist.all_reduce(self._data, op=dist.ReduceOp.MAX)

    def run_beside(self, count: int) -> list[Any]:
        """Launch so many beside the computation; the handles to wait for."""
        return [
            dist.all_reduce(self._data, op=dist.ReduceOp.MAX, async_op=True) for _ in range(count)
        ]

    def meet(self) -> None:
        """Wait for the other ranks: 4 bytes."""
        dist.all_reduce(self._token)


class ExposedSteps:
    """Steps of computing, waiting for the slower rank, and an all-reduce that nothing hides."""

    def __init__(self, share: float, step: float, *, mixed: bool = False) -> None:
        self._work, self._exchange = Products(mixed=mixed), Exchange()
        product = length_of(lambda: self._work.run(1), at_once=50)
        piece = length_together(lambda: self._exchange.run(1), sized(200, 3))
        self._products = count_of(step * (1 - share), product)
        self._pieces = count_of(step * share, piece)

    def compute(self, clock: ShareClock) -> None:
        """The first half of a step."""
        self._work.run(self._products)
        clock.mark(BUSY)

    def exchange(self, clock: ShareClock) -> None:
        """The second."""
        self._exchange.meet()
        clock.mark(PEER)
        self._exchange.run(self._pieces)
        clock.mark(NVLINK)
        clock.step()


def exposed(rank: int, seconds: float, *, share: float, step: float, mixed: bool = False) -> None:
    """So large a share of each step (s) is an all-reduce that nothing hides."""
    steps = ExposedSteps(share, step, mixed=mixed)
    clock = ShareClock(seconds, rank)
    clock.begin()
    while clock.going():
        steps.compute(clock)
        steps.exchange(clock)


def overlapped(rank: int, seconds: float, *, step: float, covered: float) -> None:
    """All-reduces as long as so large a share of the computation run beside it: none is exposed."""
    work, exchange = Products(), Exchange()
    products = count_of(step, length_of(lambda: work.run(1), at_once=50))
    pieces = count_of(step * covered, length_together(lambda: exchange.run(1), sized(200, 3)))
    clock = ShareClock(seconds, rank)
    clock.begin()
    while clock.going():
        running = exchange.run_beside(pieces)
        work.run(products)
        clock.mark(BUSY)
        for handle in running:
            handle.wait()
        clock.mark(NVLINK)
        clock.step()


def all_to_all(rank: int, seconds: float, *, share: float, step: float, layers: int) -> None:
    """A mixture of experts: each layer computes, then sends every token to another rank."""
    work = Products(mixed=True)
    ranks = dist.get_world_size()
    tokens = torch.rand(sized(EXCHANGED, 1 << 16) // 4 // ranks * ranks, device=DEVICE)
    routed, token = torch.empty_like(tokens), torch.zeros(1, device=DEVICE)

    def route() -> None:
        dist.all_to_all_single(routed, tokens)

    products = count_of(step * (1 - share) / layers, length_of(lambda: work.run(1), at_once=50))
    exchanges = count_of(step * share / layers, length_together(route, sized(200, 3)))
    clock = ShareClock(seconds, rank)
    clock.begin()
    while clock.going():
        for _ in range(layers):
            work.run(products)
            clock.mark(BUSY)
            dist.all_reduce(token)
            clock.mark(PEER)
            for _ in range(exchanges):
                route()
            clock.mark(NVLINK)
        clock.step()


class PipelineStage:
    """A stage, one a rank, under GPipe's schedule: all forward passes, then all backward ones."""

    def __init__(self, rank: int, clock: ShareClock, forward: float, microbatches: int) -> None:
        self._rank, self._clock = rank, clock
        self._work = Products(mixed=True)
        self._products = count_of(forward, length_of(lambda: self._work.run(1), at_once=50))
        size = sized(ACTIVATIONS, 1 << 16) // 4
        self._activations = [torch.rand(size, device=DEVICE) for _ in range(microbatches)]
        self._sent: list[Any] = []

    def step(self) -> None:
        """One batch through all stages and back."""
        self._pass(self._products, self._rank - 1, self._rank + 1)
        self._pass(2 * self._products, self._rank + 1, self._rank - 1)
        for handle in self._sent:
            handle.wait()
        self._sent.clear()
        self._clock.mark(PEER)
        self._clock.step()

    def _pass(self, products: int, source: int, target: int) -> None:
        ranks = range(dist.get_world_size())
        for tensor in self._activations:
            if source in ranks:
                dist.recv(tensor, source)
                self._clock.mark(PEER)
            self._work.run(products)
            self._clock.mark(BUSY)
            if target in ranks:
                self._sent.append(dist.isend(tensor, target))


def pipeline(rank: int, seconds: float, *, forward: float, microbatches: int) -> None:
    """A stage a rank; forward takes so long (s) a microbatch, backward twice that.

    With m microbatches and p stages each waits (p - 1) / (m + p - 1) of the time for the others.
    """
    clock = ShareClock(seconds, rank)
    runner = PipelineStage(rank, clock, forward, microbatches)
    dist.barrier()
    clock.begin()
    while clock.going():
        runner.step()


def resting(rank: int, seconds: float, *, rest: float, share: float, step: float) -> None:
    """A job that has met, rests for so long (s), and then works: for questions to NCCL."""
    steps = ExposedSteps(share, step)
    clock = ShareClock(seconds, rank)
    clock.begin()
    clock.open(UNKNOWN)
    time.sleep(rest)
    clock.mark(UNKNOWN)
    while clock.going():
        steps.compute(clock)
        steps.exchange(clock)
