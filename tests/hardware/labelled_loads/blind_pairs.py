"""Loads of two ranks for blind trials: no rule of the agent was made with them in sight."""

import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from tests.hardware.labelled_loads.blind_input import (
    LoadedTokens,
    language_model,
    token_shape,
    words,
)
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.collectives import EXCHANGED
from tests.hardware.labelled_loads.feeding import decode
from tests.hardware.labelled_loads.labels import BUSY, CPU, HUNG, NVLINK, PEER, UNKNOWN
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.work import (
    Products,
    count_of,
    length_of,
    length_together,
    sized,
)
from tests.hardware.training import DEVICE, synchronize

WARM_UP = 4
"""Steps before the steady phase."""


def share_memory(parameters: list[Any]) -> tuple[Any, Any]:
    """All parameters in one tensor, and all gradients: one collective moves them."""
    count = sum(parameter.numel() for parameter in parameters)
    values, gradients = (torch.zeros(count, device=DEVICE) for _ in range(2))
    at = 0
    for parameter in parameters:
        piece = slice(at, at + parameter.numel())
        values[piece].copy_(parameter.data.flatten())
        parameter.data = values[piece].view_as(parameter)
        parameter.grad = gradients[piece].view_as(parameter)
        at = piece.stop
    return values, gradients


class HandWrittenSteps:
    """A language model whose gradients are exchanged in one piece after the backward pass."""

    def __init__(self, batch: int, layers: int = 12, width: int = 768) -> None:
        self.tokens = LoadedTokens(batch)
        network = language_model(layers, width)
        parameters = list(network.parameters())
        self.values, self.gradients = share_memory(parameters)
        self._trainer = Trainer(network, self.tokens.loss)
        self._optimiser = torch.optim.AdamW(parameters, lr=1e-5, foreach=True)
        self._token = torch.zeros(1, device=DEVICE)

    def warm_up(self) -> None:
        """Steps in which both ranks take part."""
        for _ in range(WARM_UP):
            self.unmarked_step()

    def unmarked_step(self) -> None:
        """A step that no clock sees."""
        self.backward()
        self.meet()
        dist.all_reduce(self.gradients)
        self.update()

    def evaluate(self) -> None:
        """One forward pass."""
        with torch.no_grad():
            self._trainer.loss()

    def backward(self) -> None:
        """Forward and backward: the gradients of this rank."""
        self._trainer.loss().backward()

    def meet(self) -> None:
        """Wait for the other rank: 4 bytes."""
        dist.all_reduce(self._token)

    def update(self) -> None:
        """The optimiser's part."""
        self._optimiser.step()
        self.gradients.zero_()

    def step(self, clock: ShareClock) -> None:
        """One step, phase by phase."""
        self.backward()
        clock.mark(BUSY)
        self.meet()
        clock.mark(PEER)
        dist.all_reduce(self.gradients)
        clock.mark(NVLINK)
        self.update()
        clock.mark(BUSY)
        clock.step()


class DecodedTokens(IterableDataset):
    """Each batch costs so many seconds of a core."""

    def __init__(self, batch: int, cpu_seconds: float) -> None:
        self._batch, self._cpu_seconds = batch, cpu_seconds

    def __iter__(self) -> Iterator[Any]:
        made = torch.randint(0, words(), token_shape(self._batch))
        while True:
            decode(self._cpu_seconds)
            yield made.clone()


def _only_core(core: int, _worker: int) -> None:
    os.sched_setaffinity(0, {core})


def starved_rank(
    rank: int, seconds: float, *, batch: int, cpu_seconds: float, workers: int
) -> None:
    """Rank 0's loader has one core for all its workers; rank 1 has its data and waits for rank 0.

    Every other core is free.
    """
    loader = DataLoader(
        DecodedTokens(batch, cpu_seconds),
        batch_size=None,
        num_workers=workers,
        worker_init_fn=functools.partial(_only_core, max(os.sched_getaffinity(0))),
        multiprocessing_context="fork",
    )
    batches = iter(loader) if rank == 0 else None
    steps = HandWrittenSteps(batch)
    if batches is not None:
        for _ in range(2 * workers):
            next(batches)  # what the workers made ahead
    steps.warm_up()
    clock = ShareClock(seconds, rank)
    clock.begin()
    while clock.going():
        if batches is not None:
            made = next(batches)
            clock.mark(CPU)
            steps.tokens.take(made)
        steps.step(clock)


class TensorParallelLayers:
    """Layers whose halves lie on two ranks: a small all-reduce after each, in both directions."""

    def __init__(self, compute: float, message: int) -> None:
        """A layer computes for so long (s) forward, then moves a message (bytes)."""
        side = sized(4096, 128)
        self._left, self._right, self._out = (
            torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)
        )
        self._message = torch.rand(sized(message, 1 << 12) // 4, device=DEVICE)
        self._token = torch.zeros(1, device=DEVICE)
        self._products = count_of(compute, length_of(lambda: self.compute(1), at_once=50))

    def compute(self, products: int) -> None:
        """Products of matrices and what follows them."""
        for _ in range(products):
            torch.matmul(self._left, self._right, out=self._out)
            torch.nn.functional.gelu(self._out)

    def layer(self, clock: ShareClock, times: int) -> None:
        """One layer that computes so many times as long as forward."""
        self.compute(times * self._products)
        clock.mark(BUSY)
        dist.all_reduce(self._token)
        clock.mark(PEER)
        dist.all_reduce(self._message, op=dist.ReduceOp.MAX)
        clock.mark(NVLINK)


def tensor_parallel(
    rank: int, seconds: float, *, layers: int, compute: float, message: int
) -> None:
    """Communication in many small pieces, all of it exposed."""
    parallel = TensorParallelLayers(compute, message)
    clock = ShareClock(seconds, rank)
    dist.barrier()
    clock.begin()
    while clock.going():
        for _ in range(layers):
            parallel.layer(clock, 1)
        for _ in range(layers):
            parallel.layer(clock, 2)
        clock.step()


def partly_hidden(
    rank: int, seconds: float, *, forward: float, gathering: float, scattering: float
) -> None:
    """Parameters are gathered beside the forward pass, gradients scattered beside the backward.

    `forward` (s); backward is twice that. `gathering` and `scattering`: how long these exchanges
    take alone, as shares of the pass that they run beside. Above 1 the rest is exposed.
    """
    work = Products(mixed=True)
    whole = torch.rand(sized(EXCHANGED, 1 << 20) // 4, device=DEVICE)
    piece = whole.chunk(2)[rank].clone()
    both, mine = torch.empty_like(whole), torch.empty_like(piece)

    def gather(*, beside: bool = False) -> Any:
        return dist.all_gather_into_tensor(both, piece, async_op=beside)

    def scatter(*, beside: bool = False) -> Any:
        return dist.reduce_scatter_tensor(mine, whole, dist.ReduceOp.MAX, async_op=beside)

    products = count_of(forward, length_of(lambda: work.run(1), at_once=50))
    count = sized(200, 3)
    gathers = count_of(forward * gathering, length_together(gather, count))
    scatters = count_of(2 * forward * scattering, length_together(scatter, count))
    clock = ShareClock(seconds, rank)
    clock.begin()
    while clock.going():
        for exchange, pieces, times in ((gather, gathers, 1), (scatter, scatters, 2)):
            running = [exchange(beside=True) for _ in range(pieces)]
            work.run(times * products)
            clock.mark(BUSY)
            for handle in running:
                handle.wait()
            clock.mark(NVLINK)
        clock.step()


def parameter_server(rank: int, seconds: float, *, batch: int, layers: int, width: int) -> None:
    """Rank 0 alone holds the optimiser: it collects gradients, updates, and sends parameters."""
    steps = HandWrittenSteps(batch, layers, width)
    steps.warm_up()
    clock = ShareClock(seconds, rank)
    clock.begin()
    while clock.going():
        steps.backward()
        clock.mark(BUSY)
        steps.meet()
        clock.mark(PEER)
        dist.reduce(steps.gradients, 0)
        clock.mark(NVLINK)
        if rank == 0:
            steps.update()
        else:
            steps.gradients.zero_()
        clock.mark(BUSY)
        steps.meet()
        clock.mark(PEER)
        dist.broadcast(steps.values, 0)
        clock.mark(NVLINK)
        clock.step()


def evaluating(rank: int, seconds: float, *, batch: int, every: int, lasting: float) -> None:
    """Rank 0 evaluates for so long (s) after each so many steps; rank 1 waits for its next."""
    steps = HandWrittenSteps(batch)
    steps.warm_up()
    passes = count_of(sized(lasting, 0.5), length_of(steps.evaluate, at_once=4))
    clock = ShareClock(seconds, rank)
    clock.begin()
    done = 0
    while clock.going():
        steps.step(clock)
        done += 1
        if rank == 0 and done % every == 0:
            for _ in range(passes):
                steps.evaluate()
            clock.mark(BUSY)


def stopped_at_times(
    rank: int, seconds: float, *, batch: int, running: float, stopped: float
) -> None:
    """Rank 1 runs and is stopped by signals in turn (s); rank 0 waits for it meanwhile.

    Rank 1's GPU has nothing to do then, and nothing of the machine is lacking.
    """
    steps = HandWrittenSteps(batch)
    steps.warm_up()
    clock = ShareClock(seconds, rank)
    clock.begin()
    resumed = time.monotonic()
    while clock.going():
        steps.step(clock)
        if rank == 1 and time.monotonic() - resumed >= running:
            synchronize()
            with subprocess.Popen(["sh", "-c", f"sleep {stopped}; kill -CONT {os.getpid()}"]):
                os.kill(os.getpid(), signal.SIGSTOP)
            clock.mark(UNKNOWN)
            resumed = time.monotonic()


def hang_in_barrier(rank: int, seconds: float, *, batch: int, after: float) -> None:
    """Trains for about so long (s); then rank 0 waits on the host for rank 1, which sleeps on.

    No kernel runs, and nothing was left out that NCCL could tell of.
    """
    beside = dist.new_group([0, 1], backend="gloo")
    steps = HandWrittenSteps(batch)
    steps.warm_up()
    count = count_of(after, length_together(steps.unmarked_step, sized(10, 2)))
    clock = ShareClock(seconds, rank)
    clock.begin()
    for _ in range(count):
        steps.step(clock)
    synchronize()
    clock.open(HUNG)
    while rank == 1:
        time.sleep(60.0)
    dist.barrier(group=beside)
