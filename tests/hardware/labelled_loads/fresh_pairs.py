"""Loads of two ranks of the second blind trial: no rule of the agent was made with them."""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.hardware.labelled_loads.blind_pairs import HandWrittenSteps, share_memory
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.collectives import ACTIVATIONS
from tests.hardware.labelled_loads.labels import BUSY, CPU, HUNG, NVLINK, PEER
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.work import (
    Products,
    count_of,
    length_of,
    length_together,
    sized,
)
from tests.hardware.training import DEVICE, synchronize

WARM_UP = 3
"""Steps before the steady phase."""

Mark = Callable[[str], None]
"""A clock's `mark`."""


def _unmarked(_label: str) -> None:
    """In the place of a clock's `mark` before the steady phase."""


class Recommender(nn.Module):
    """A large table of embeddings below wide layers."""

    def __init__(self, entries: int, width: int, features: int, wide: int) -> None:
        super().__init__()
        self.table = nn.Embedding(entries, width)
        self.above = nn.Sequential(
            *(nn.Linear(features * width, wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU()),
            nn.Linear(wide, 1),
        )

    def forward(self, features: Any) -> Any:
        """`features`: entries of the table; row, feature. One number a row."""
        return self.above(self.table(features).flatten(1))


def dense_embeddings(
    rank: int, seconds: float, *, entries: int, width: int, features: int, rows: int, wide: int
) -> None:
    """All gradients of a table of embeddings are exchanged, though nearly all of them are 0."""
    entries, width, rows, wide = sized((entries, width, rows, wide), (500, 8, 64, 32))
    with torch.device(DEVICE):
        network = Recommender(entries, width, features, wide)
        seen = torch.randint(0, entries, (rows, features))
    token = torch.zeros(1, device=DEVICE)
    values, gradients = share_memory(list(network.parameters()))
    trainer = Trainer(network, lambda network: network(seen).float().square().mean())
    clock = ShareClock(seconds, rank)
    for _ in range(WARM_UP):
        trainer.loss().backward()
        dist.all_reduce(gradients)
        gradients.zero_()
    clock.begin()
    while clock.going():
        trainer.loss().backward()
        clock.mark(BUSY)
        dist.all_reduce(token)
        clock.mark(PEER)
        dist.all_reduce(gradients)
        clock.mark(NVLINK)
        values.add_(gradients, alpha=-1e-4)
        gradients.zero_()
        clock.mark(BUSY)
        clock.step()


def averaging(rank: int, seconds: float, *, batch: int, more: int = 0) -> None:
    """A language model; rank 1 has so many sequences more in each step, and rank 0 waits for it."""
    steps = HandWrittenSteps(batch + more * rank)
    steps.warm_up()
    clock = ShareClock(seconds, rank)
    clock.begin()
    while clock.going():
        steps.step(clock)


class SequenceHalves:
    """Attention over sequences of which each rank holds a half: keys and values change hands."""

    HEAD = 128

    def __init__(self, rank: int, batch: int, length: int, width: int) -> None:
        self._other = 1 - rank
        heads = width // self.HEAD
        self._shape = (batch, length, 3, heads, self.HEAD)
        with torch.device(DEVICE):
            self._values = torch.randn(batch, length, width, dtype=torch.bfloat16)
            self._mixed = nn.Linear(width, 3 * width).to(torch.bfloat16)
            self._joined = nn.Linear(width, width).to(torch.bfloat16)
            kept = (2, batch, heads, length, self.HEAD)
            self._sent, self._arrived = torch.zeros(2, *kept, dtype=torch.bfloat16).unbind()

    def layer(self, mark: Mark) -> None:
        """One layer. Attention to the own half runs beside the exchange."""
        query, *rest = self._mixed(self._values).view(self._shape).permute(2, 0, 3, 1, 4).unbind()
        self._sent.copy_(torch.stack(rest))
        exchange = [
            dist.P2POp(dist.isend, self._sent, self._other),
            dist.P2POp(dist.irecv, self._arrived, self._other),
        ]
        running = dist.batch_isend_irecv(exchange)
        own = functional.scaled_dot_product_attention(query, *self._sent.unbind())
        mark(BUSY)
        for handle in running:
            handle.wait()
        mark(NVLINK)
        others = functional.scaled_dot_product_attention(query, *self._arrived.unbind())
        told = (own + others).transpose(1, 2).flatten(2)
        self._values = functional.layer_norm(self._values + self._joined(told), told.shape[2:])
        mark(BUSY)


def sequence_halves(
    rank: int, seconds: float, *, layers: int, batch: int, length: int, width: int
) -> None:
    """Long documents are read by two ranks; the exchange hides behind attention."""
    batch, length, width = sized((batch, length, width), (1, 32, 256))
    token = torch.zeros(1, device=DEVICE)
    with torch.no_grad():
        halves = SequenceHalves(rank, batch, length, width)
        dist.all_reduce(token)  # the ranks have met before they send
        for _ in range(WARM_UP):
            halves.layer(_unmarked)
        clock = ShareClock(seconds, rank)
        dist.all_reduce(token)
        clock.begin()
        while clock.going():
            for _ in range(layers):
                halves.layer(clock.mark)
            dist.all_reduce(token)
            clock.mark(PEER)
            clock.step()


class UnevenExperts:
    """Experts on two ranks; each token goes to several, and more of them lie on rank 1."""

    def __init__(self, rank: int, tokens: int, chosen: int, width: int, narrow: int) -> None:
        """`chosen` experts a token; an expert is so `narrow`."""
        rows = tokens * chosen
        self._splits = [rows * 7 // 16, rows - rows * 7 // 16]
        self._received = [self._splits[rank]] * 2
        with torch.device(DEVICE):
            self._tokens = torch.randn(tokens, width, dtype=torch.bfloat16)
            self._order = torch.randperm(rows) % tokens
            self._mixed = nn.Linear(width, 3 * width).to(torch.bfloat16)
            self._expert = nn.Sequential(
                nn.Linear(width, narrow), nn.SiLU(), nn.Linear(narrow, width)
            ).to(torch.bfloat16)
            self._arrived = torch.zeros(2 * self._splits[rank], width, dtype=torch.bfloat16)
            self._back = torch.zeros(rows, width, dtype=torch.bfloat16)
            self._token = torch.zeros(1)

    def layer(self, mark: Mark) -> None:
        """Projections, the way to the experts, these, and the way back."""
        self._mixed(self._tokens)
        sent = self._tokens[self._order]
        mark(BUSY)
        self._meet(mark)
        dist.all_to_all_single(self._arrived, sent, self._received, self._splits)
        mark(NVLINK)
        done = self._expert(self._arrived)
        mark(BUSY)
        self._meet(mark)
        dist.all_to_all_single(self._back, done, self._splits, self._received)
        mark(NVLINK)

    def _meet(self, mark: Mark) -> None:
        dist.all_reduce(self._token)
        mark(PEER)


def uneven_experts(
    rank: int, seconds: float, *, layers: int, tokens: int, chosen: int, width: int, narrow: int
) -> None:
    """A mixture of experts answers prompts; rank 0 waits for rank 1 in each layer."""
    tokens, width, narrow = sized((tokens, width, narrow), (32, 64, 32))
    with torch.no_grad():
        experts = UnevenExperts(rank, tokens, chosen, width, narrow)
        for _ in range(WARM_UP):
            experts.layer(_unmarked)
        clock = ShareClock(seconds, rank)
        dist.barrier()
        clock.begin()
        while clock.going():
            for _ in range(layers):
                experts.layer(clock.mark)
            clock.step()


class AlternatingStage:
    """One of two stages that turn from forward to backward passes as soon as they can."""

    def __init__(self, rank: int, clock: ShareClock, forward: float, microbatches: int) -> None:
        self._rank, self._clock = rank, clock
        self._work = Products(mixed=True)
        self._products = count_of(forward, length_of(lambda: self._work.run(1), at_once=50))
        size = sized(ACTIVATIONS, 1 << 16) // 4
        self._tensors = [
            [torch.rand(size, device=DEVICE) for _ in range(microbatches)] for _ in range(2)
        ]
        # a channel each way: what goes up must not wait for what comes down
        self._channels = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        for sender, channel in enumerate(self._channels):
            dist.all_reduce(torch.zeros(1, device=DEVICE), group=channel)
            tensor = self._tensors[sender][0]
            if rank == sender:
                dist.send(tensor, 1 - sender, group=channel)
            else:
                dist.recv(tensor, sender, group=channel)
        self._sent: list[Any] = []

    def _pass(self, sender: int, place: int) -> None:
        """Forward where stage 0 sends, backward where stage 1 does."""
        tensor, channel = self._tensors[sender][place], self._channels[sender]
        if self._rank != sender:
            dist.recv(tensor, sender, group=channel)
            self._clock.mark(PEER)
        self._work.run((1 + sender) * self._products)
        self._clock.mark(BUSY)
        if self._rank == sender:
            handle = dist.isend(tensor, 1 - sender, group=channel)
            self._sent.append(handle)

    def step(self) -> None:
        """All microbatches; stage 0 is one forward pass ahead."""
        last = len(self._tensors[0])
        ahead = 1 - self._rank
        for place in range(last + ahead):
            if place < last:
                self._pass(0, place)
            if place >= ahead:
                self._pass(1, place - ahead)
        for handle in self._sent:
            handle.wait()
        self._sent.clear()
        self._clock.mark(PEER)
        self._clock.step()


def alternating_pipeline(rank: int, seconds: float, *, forward: float, microbatches: int) -> None:
    """Two stages, one forward and one backward pass in turn; backward takes twice as long.

    With m microbatches each stage waits 1 / (m + 1) of the time for the other.
    """
    clock = ShareClock(seconds, rank)
    stage = AlternatingStage(rank, clock, forward, microbatches)
    dist.barrier()
    clock.begin()
    while clock.going():
        stage.step()


def _distance(first: str, second: str) -> int:
    """How many letters to change, add or leave out."""
    row = list(range(len(second) + 1))
    for above, letter in enumerate(first):
        corner, row[0] = row[0], above + 1
        for place, other in enumerate(second):
            best = min(corner + (letter != other), row[place] + 1, row[place + 1] + 1)
            corner, row[place + 1] = row[place + 1], best
    return row[-1]


def scoring(rank: int, seconds: float, *, batch: int, every: int, cpu_seconds: float) -> None:
    """After each so many steps rank 0 scores answers in plain Python; rank 1 waits meanwhile."""
    steps = HandWrittenSteps(batch)
    steps.warm_up()
    clock = ShareClock(seconds, rank)
    clock.begin()
    done = 0
    while clock.going():
        steps.step(clock)
        done += 1
        if rank == 0 and done % every == 0:
            synchronize()
            end = time.thread_time() + cpu_seconds
            while time.thread_time() < end:
                _distance("what was answered" * 8, "what was to be answered" * 6)
            clock.mark(CPU)


def actor_learner(rank: int, seconds: float, *, batch: int, acting: float, learning: float) -> None:
    """Rank 1 makes samples for so long (s), then rank 0 learns from them, and neither at once."""
    steps = HandWrittenSteps(batch)
    steps.warm_up()
    samples = torch.rand(sized(32 << 20, 1 << 10), device=DEVICE)

    def learn() -> None:
        steps.backward()
        steps.update()

    # no rank may measure while the other waits for it
    passes = count_of(acting, length_of(steps.evaluate, at_once=4))
    turns = count_of(learning, length_of(learn, at_once=4))
    dist.broadcast(samples, 1)
    clock = ShareClock(seconds, rank)
    clock.begin()
    while clock.going():
        if rank == 1:
            for _ in range(passes):
                steps.evaluate()
            clock.mark(BUSY)
        steps.meet()
        clock.mark(PEER)
        dist.broadcast(samples, 1)
        clock.mark(NVLINK)
        if rank == 0:
            for _ in range(turns):
                learn()
            clock.mark(BUSY)
        steps.meet()
        clock.mark(PEER)
        dist.broadcast(steps.values, 0)
        clock.mark(NVLINK)
        clock.step()


def _trained(rank: int, seconds: float, batch: int, after: float) -> HandWrittenSteps:
    """Trains for about so long (s); from then on the job hangs."""
    steps = HandWrittenSteps(batch)
    steps.warm_up()
    count = count_of(after, length_together(steps.unmarked_step, sized(10, 2)))
    clock = ShareClock(seconds, rank)
    clock.begin()
    for _ in range(count):
        steps.step(clock)
    clock.open(HUNG)
    return steps


def hang_uneven(rank: int, seconds: float, *, batch: int, after: float) -> None:
    """Rank 1's data ends a batch earlier: it waits on the host for the end of rank 0's."""
    beside = dist.new_group([0, 1], backend="gloo")
    steps = _trained(rank, seconds, batch, after)
    if rank == 1:
        dist.barrier(group=beside)
    steps.unmarked_step()
    synchronize()
    dist.barrier(group=beside)


def hang_looping(rank: int, seconds: float, *, batch: int, after: float) -> None:
    """Rank 1 looks for a file that nobody writes, again and again, and never sleeps."""
    steps = _trained(rank, seconds, batch, after)
    while rank == 1 and not os.path.exists("/nobody/writes/this"):  # noqa: PTH110 (it is the load)
        pass
    steps.unmarked_step()
    synchronize()
