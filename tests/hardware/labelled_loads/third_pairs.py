"""Loads of two ranks of the third blind trial: no rule of the agent was made with them."""

import itertools
import queue
import signal
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.hardware.labelled_loads.blind_input import (
    LoadedTokens,
    language_model,
    token_shape,
    words,
)
from tests.hardware.labelled_loads.blind_pairs import share_memory
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, CPU, HUNG, NVLINK, PEER
from tests.hardware.labelled_loads.models import TransformerBlock
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.third_alone import WARM_UP, Mark, steadily, unmarked
from tests.hardware.labelled_loads.third_input import Loader, PipedPictures
from tests.hardware.labelled_loads.third_networks import (
    Mixer,
    Ring,
    RingLayer,
    blank,
    recognition,
    scanning,
)
from tests.hardware.labelled_loads.work import count_of, length_of, length_together, sized
from tests.hardware.training import DEVICE, synchronize

Made = queue.Queue[Any]
"""Batches that a thread has made."""

BUCKET = 25 << 20
"""Bytes of gradients that are exchanged at once."""


class FlatTraining:
    """A network whose parameters are one tensor, and whose gradients are another."""

    def __init__(self, network: Any, loss: Any) -> None:
        self.values, self.gradients = share_memory(list(network.parameters()))
        self._trainer = Trainer(network, loss)
        self._token = torch.zeros(1, device=DEVICE)

    def backward(self) -> None:
        """Forward and backward: the gradients of this rank."""
        self._trainer.loss().backward()

    def meet(self) -> None:
        """Wait for the other rank: 4 bytes."""
        dist.all_reduce(self._token)

    def update(self) -> None:
        """A step down the gradients."""
        self.values.add_(self.gradients, alpha=-1e-6)
        self.gradients.zero_()

    def alone(self) -> None:
        """A step that no other rank takes part in."""
        self.backward()
        self.update()

    def step(self, mark: Mark) -> None:
        """A step whose gradients are exchanged in one piece."""
        self.backward()
        mark(BUSY)
        self.meet()
        mark(PEER)
        dist.all_reduce(self.gradients)
        mark(NVLINK)
        self.update()
        mark(BUSY)


def _mixer() -> Any:
    with torch.device(DEVICE):
        return Mixer()


def bucketed_exchange(rank: int, seconds: float, *, batch: int, share: float) -> None:
    """Gradients are exchanged bucket by bucket after the backward pass: so large a share."""
    training = FlatTraining(_mixer(), recognition(blank(batch).to(DEVICE)))
    buckets = training.gradients.split(sized(BUCKET // 4, 1 << 10))[:-1]
    alone = length_of(training.alone, sized(1.0, 0.1), at_once=4)
    each = length_together(lambda: dist.all_reduce(buckets[0]), sized(200, 3))
    count = count_of(alone * share / (1 - share), each)
    turns = itertools.cycle(buckets)

    def step(mark: Mark) -> None:
        training.backward()
        mark(BUSY)
        training.meet()
        mark(PEER)
        for bucket in itertools.islice(turns, count):
            dist.all_reduce(bucket)
        mark(NVLINK)
        training.update()
        mark(BUSY)

    steadily(seconds, step, rank=rank)


class ShardedTraining(FlatTraining):
    """Each rank holds the optimiser's state of a half: scatter, update the own half, gather."""

    def __init__(self, rank: int, batch: int, layers: int, width: int) -> None:
        self.tokens = LoadedTokens(batch)
        super().__init__(language_model(layers, width), self.tokens.loss)
        whole = len(self.values) // 2 * 2  # what is left over stays as it is
        self._all, self._told = self.values[:whole], self.gradients[:whole]
        self._own = self._all.chunk(2)[rank].clone()
        self._gradient, self._momentum = torch.zeros_like(self._own), torch.zeros_like(self._own)

    def scatter(self, mark: Mark) -> None:
        """Until each rank knows the gradients of its half."""
        self.backward()
        mark(BUSY)
        self.meet()
        mark(PEER)
        dist.reduce_scatter_tensor(self._gradient, self._told)
        mark(NVLINK)

    def gather(self, mark: Mark) -> None:
        """Until each rank has all parameters again."""
        self._momentum.mul_(0.9).add_(self._gradient)
        self._own.add_(self._momentum, alpha=-1e-6)
        self.gradients.zero_()
        mark(BUSY)
        self.meet()
        mark(PEER)
        dist.all_gather_into_tensor(self._all, self._own)
        mark(NVLINK)

    def step(self, mark: Mark) -> None:
        """One step, phase by phase."""
        self.scatter(mark)
        self.gather(mark)


def scattered_gathered(rank: int, seconds: float, *, batch: int, layers: int, width: int) -> None:
    """Gradients are scattered and parameters gathered in the open, each in one piece."""
    steadily(seconds, ShardedTraining(rank, batch, layers, width).step, rank=rank)


def ring_attention(
    rank: int, seconds: float, *, layers: int, batch: int, length: int, width: int
) -> None:
    """Keys and values travel beside attention, and their gradients in the open.

    A step is measured before the ranks are connected: what it takes longer then is communication.
    """
    layers, batch, length, width = sized((layers, batch, length, width), (2, 1, 16, 128))
    ring = Ring(rank)
    with torch.device(DEVICE):
        network = nn.Sequential(*(RingLayer(width, ring) for _ in range(layers)))
        seen = torch.randn(batch, length, width)
    trainer = Trainer(network, lambda network: network(seen).float().square().mean())
    alone = length_of(trainer.step, sized(1.5, 0.1), at_once=4)
    dist.barrier()  # the ranks have met before they send
    ring.connected = True

    def step(mark: Mark) -> None:
        trainer.step()
        mark(BUSY)

    steadily(seconds, step, rank=rank, levels=[(NVLINK, alone, None)])


class UnevenStage:
    """One of two stages of a language model: one forward, one backward pass in turn."""

    def __init__(
        self, rank: int, layers: Sequence[int], width: int, batch: int, microbatches: int
    ) -> None:
        self.rank, self._microbatches = rank, microbatches
        count, width = sized((layers[rank], width), (1 + rank, 64))
        with torch.device(DEVICE):
            self._tokens = torch.randint(0, words(), token_shape(batch))
            self._words = nn.Embedding(words(), width)
            blocks = nn.Sequential(*(TransformerBlock(width, width // 64) for _ in range(count)))
        self._blocks = blocks
        self._shape = (len(self._tokens), self._tokens.shape[1] - 1, width)
        trained = [*blocks.parameters(), *self._words.parameters()]
        self._optimiser = torch.optim.AdamW(trained, lr=1e-5, fused=DEVICE == "cuda" or None)
        # a channel each way: what goes up must not wait for what comes down
        self._channels = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        for channel in self._channels:
            dist.all_reduce(torch.zeros(1, device=DEVICE), group=channel)
        self._sent: list[tuple[Any, Any]] = []

    def step(self, mark: Mark) -> None:
        """All microbatches, and the optimiser's part."""
        if self.rank == 0:
            self._first(mark)
        else:
            self._second(mark)
        for handle, _ in self._sent:
            handle.wait()
        self._sent.clear()
        mark(PEER)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=False)
        mark(BUSY)

    def _first(self, mark: Mark) -> None:
        kept: deque[Any] = deque()
        for place in range(self._microbatches + 1):  # one forward pass ahead
            if place < self._microbatches:
                with torch.autocast(DEVICE, torch.bfloat16):
                    kept.append(self._blocks(self._words(self._tokens[:, :-1])).bfloat16())
                mark(BUSY)
                self._send(kept[-1].detach())
            if place > 0:
                gradient = self._receive(mark)
                kept.popleft().backward(gradient)
                mark(BUSY)

    def _second(self, mark: Mark) -> None:
        for _ in range(self._microbatches):
            hidden = self._receive(mark).requires_grad_()
            with torch.autocast(DEVICE, torch.bfloat16):
                guessed = functional.linear(self._blocks(hidden.float()), self._words.weight)
                wanted = self._tokens[:, 1:].flatten()
                loss = functional.cross_entropy(guessed.flatten(0, 1), wanted)
            loss.backward()
            mark(BUSY)
            self._send(hidden.grad)

    def _send(self, tensor: Any) -> None:
        handle = dist.isend(tensor, 1 - self.rank, group=self._channels[self.rank])
        self._sent.append((handle, tensor))

    def _receive(self, mark: Mark) -> Any:
        arrived = torch.empty(self._shape, dtype=torch.bfloat16, device=DEVICE)
        dist.recv(arrived, 1 - self.rank, group=self._channels[1 - self.rank])
        mark(PEER)
        return arrived


def uneven_stages(
    rank: int, seconds: float, *, layers: Sequence[int], width: int, batch: int, microbatches: int
) -> None:
    """A pipeline whose second stage has more layers and the words: the first waits for it."""
    stage = UnevenStage(rank, layers, width, batch, microbatches)
    steadily(seconds, stage.step, rank=rank)


def late_scanning(
    rank: int, seconds: float, *, batch: int, more: int, length: int, width: int, layers: int
) -> None:
    """Rank 1 has so many sequences more in each step, and rank 0 waits for it."""
    training = FlatTraining(*scanning(batch + more * rank, length, width, layers))
    steadily(seconds, training.step, rank=rank)


def fed_by_a_command(rank: int, seconds: float, *, batch: int, share: float) -> None:
    """Rank 1's images come out of an unpacking command too late; rank 0 has its own, and waits."""
    loader = None
    if rank == 1:  # spawned: this process may have asked its GPU something
        loader = Loader(lambda amount: PipedPictures(batch, amount), 1, sized(160, 4), "spawn")
    seen = blank(batch).to(DEVICE)
    training = FlatTraining(_mixer(), recognition(seen))
    for _ in range(WARM_UP):
        training.step(unmarked)
    together = length_together(lambda: training.step(unmarked), sized(12, 2))
    if loader is not None:
        loader.come_every(together / (1 - share), least=1.0)

    def step(mark: Mark) -> None:
        if loader is not None:
            images = next(loader.batches)
            mark(CPU)
            seen.copy_(images, non_blocking=True)
        training.step(mark)

    steadily(seconds, step, rank=rank)


def mixer_accumulating(rank: int, seconds: float, *, batch: int, accumulate: int) -> None:
    """Healthy: only the last of several batches exchanges gradients, beside its backward pass."""
    network = DistributedDataParallel(
        _mixer(),
        device_ids=[rank] if DEVICE == "cuda" else None,
        bucket_cap_mb=100,
        gradient_as_bucket_view=True,
    )
    trainer = Trainer(network, recognition(blank(batch).to(DEVICE)), accumulate)
    for _ in range(WARM_UP):
        trainer.step()
    alone = length_of(lambda: trainer.step(exchange=False), sized(1.5, 0.1), at_once=2)

    def step(mark: Mark) -> None:
        trainer.step()
        mark(BUSY)

    steadily(seconds, step, rank=rank, levels=[(NVLINK, alone, None)])


def _trained(
    rank: int, seconds: float, batch: int, after: float
) -> tuple[ShardedTraining, ShareClock, Made]:
    """Trains for about so long (s), with a thread that makes as many batches as this takes.

    Its queue is empty from then on.
    """
    training = ShardedTraining(rank, batch, 12, 768)
    for _ in range(WARM_UP):
        training.step(unmarked)
    count = count_of(after, length_together(lambda: training.step(unmarked), sized(10, 2)))
    made: Made = queue.Queue(2)

    def load() -> None:
        for _ in range(count):
            made.put(torch.randint(0, words(), token_shape(batch)))

    threading.Thread(target=load, daemon=True).start()
    clock = ShareClock(seconds, rank)
    clock.begin()
    for _ in range(count):
        training.tokens.take(made.get())
        training.step(clock.mark)
        clock.step()
    return training, clock, made


def hang_halfway(rank: int, seconds: float, *, batch: int, after: float) -> None:
    """Rank 1 stops itself by a signal between scatter and gather; rank 0 gathers for ever."""
    training, clock, _ = _trained(rank, seconds, batch, after)
    training.scatter(clock.mark)
    clock.open(HUNG)
    if rank == 1:
        signal.raise_signal(signal.SIGSTOP)
    training.gather(unmarked)
    synchronize()


def hang_loader(rank: int, seconds: float, *, batch: int, after: float) -> None:
    """Rank 1's loading thread has ended, and rank 1 waits for its next batch for ever."""
    training, clock, made = _trained(rank, seconds, batch, after)
    clock.open(HUNG)
    if rank == 1:
        made.get()
    training.scatter(unmarked)
    synchronize()
