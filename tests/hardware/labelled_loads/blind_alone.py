"""Loads of one GPU for blind trials whose data is there: no rule was made with them in sight."""

import functools
import itertools
import os
import tempfile
import threading
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.hardware.labelled_loads.alone import recorded
from tests.hardware.labelled_loads.blind_input import (
    PREPARED,
    LoadedTokens,
    directory,
    language_model,
    words,
)
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, HOST_THREAD, PCIE
from tests.hardware.labelled_loads.models import LanguageModel
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, pinned, synchronize

ENDS = 0
"""The token after which nothing comes."""


class CheckpointedLanguageModel(LanguageModel):
    """Keeps no activations within a block: the backward pass computes them again."""

    def forward(self, tokens: Any) -> Any:
        """Logits: batch, position, word."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        values = self.words(tokens) + self.places(places)
        for block in self.blocks:
            values = checkpoint(block, values, use_reentrant=False, preserve_rng_state=False)
        return functional.linear(self.last(values), self.words.weight)


def recomputing(seconds: float, *, layers: int, width: int, positions: int) -> None:
    """One short sequence a step: kernels are shorter than their launches.

    The same step as a CUDA graph is what it would take if launching cost nothing.
    """
    with torch.device(DEVICE):
        network = CheckpointedLanguageModel(layers, width).to(torch.bfloat16)
    tokens = torch.randint(0, words(), (1, sized(positions, 16) + 1), device=DEVICE)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad(set_to_none=False)
        guessed = network(tokens[:, :-1]).flatten(0, 1)
        functional.cross_entropy(guessed, tokens[:, 1:].flatten()).backward()
        optimiser.step()

    kernels = length_of(recorded(step), at_once=sized(50, 2))
    length_of(step, at_once=sized(20, 2))
    clock = ShareClock(seconds)
    clock.begin([(HOST_THREAD, kernels, None)])
    while clock.going():
        step()
        clock.mark(BUSY)
        clock.step()


def pageable_copies(seconds: float, *, rows: int, columns: int, width: int) -> None:
    """A wide table in pageable memory is copied to the GPU slice by slice, while that rests."""
    rows, columns, width = sized((rows, columns, width), (256, 64, 64))
    table = torch.rand(4 * rows, columns)
    seen = torch.empty(rows, columns, device=DEVICE)
    network = nn.Sequential(
        *(nn.Linear(columns, width), nn.GELU(), nn.Linear(width, width), nn.GELU()),
        nn.Linear(width, 1),
    ).to(DEVICE)
    trainer = Trainer(network, lambda network: network(seen).float().square().mean())
    slices = itertools.cycle(table.split(rows))
    for _ in range(5):
        seen.copy_(next(slices))
        trainer.step()
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        seen.copy_(next(slices))
        clock.mark(PCIE)
        trainer.step()
        clock.mark(BUSY)
        clock.step()


class DecodingLayer(nn.Module):
    """One token a sequence, which attends to all that its cache holds."""

    def __init__(self, batch: int, positions: int, width: int) -> None:
        super().__init__()
        heads = width // 64
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        shape = (2, batch, positions, heads, 64)
        self.register_buffer("cache", torch.zeros(shape, dtype=torch.bfloat16))

    def forward(self, values: Any, places: Any, seen: Any) -> Any:
        """Same shape as `values`: batch, width. `seen`: batch, 1, 1, position."""
        rows = torch.arange(len(values), device=values.device)
        split = self.mixed(self.before(values)).view(len(values), 3, -1, 64)
        self.cache[0, rows, places] = split[:, 1]
        self.cache[1, rows, places] = split[:, 2]
        keys, held = self.cache.transpose(2, 3).unbind()
        told = functional.scaled_dot_product_attention(
            split[:, 0].unsqueeze(2), keys, held, attn_mask=seen
        )
        values = values + self.joined(told.flatten(1))
        return values + self.wide(self.between(values))


class Decoder:
    """Sequences of a batch, each at its own place, that grow by a token a pass."""

    def __init__(self, batch: int, positions: int, layers: int, width: int) -> None:
        batch, positions, layers, width = sized((batch, positions, layers, width), (4, 32, 2, 64))
        self.positions = positions
        with torch.device(DEVICE):
            self._words = nn.Embedding(words(), width).to(torch.bfloat16)
            self._layers = nn.ModuleList(
                DecodingLayer(batch, positions, width).to(torch.bfloat16) for _ in range(layers)
            )
            self.tokens = torch.zeros(batch, dtype=torch.int64)
            self.places = torch.zeros(batch, dtype=torch.int64)
            self._each = torch.arange(positions)

    def grow(self) -> None:
        """One pass: each sequence's most likely next token."""
        seen = (self._each <= self.places[:, None])[:, None, None, :]
        values = self._words(self.tokens)
        for layer in self._layers:
            values = layer(values, self.places, seen)
        self.tokens.copy_(functional.linear(values, self._words.weight).argmax(1))


def decoding(seconds: float, *, batch: int, positions: int, layers: int, width: int) -> None:
    """A server of tokens that never lacks requests: a CUDA graph a token, limited by memory.

    Between two tokens the GPU waits for the thread that looks at them and begins what comes next.
    """
    numbers = np.random.default_rng(0)
    with torch.no_grad():
        decoder = Decoder(batch, positions, layers, width)
        run = recorded(decoder.grow)
        lengths = numbers.integers(decoder.positions // 2, decoder.positions, len(decoder.tokens))
        places = numbers.integers(0, lengths)
        told = pinned(torch.zeros_like(decoder.tokens, device="cpu"))
        sent = pinned(torch.zeros_like(told))
        clock = None
        for turn in itertools.count():
            sent.copy_(torch.from_numpy(places))
            if clock is not None:
                clock.mark(HOST_THREAD)
            decoder.places.copy_(sent, non_blocking=True)
            run()
            told.copy_(decoder.tokens, non_blocking=True)
            if clock is not None:
                clock.mark(BUSY)
                clock.step()
                if not clock.going():
                    return
            synchronize()
            ended = (told.numpy() == ENDS) | (places + 1 >= lengths)
            places = np.where(ended, 0, places + 1)  # who has ended makes room for the next
            if clock is None and turn >= PREPARED:
                clock = ShareClock(seconds)
                clock.begin()


def saved_beside(seconds: float, *, batch: int, saved_bytes: int, every: float) -> None:
    """Healthy: a thread saves a large tensor to the disk every so often (s) while steps go on.

    A step is measured before that thread begins. What it takes longer beside it would be the
    launching thread's, as both are of one interpreter.
    """
    tokens = LoadedTokens(batch)
    trainer = Trainer(language_model(), tokens.loss)
    alone = length_of(trainer.step, sized(1.5, 0.1), at_once=4)
    state = torch.rand(sized(saved_bytes, 1 << 20) // 4, device=DEVICE)
    host = pinned(torch.empty_like(state, device="cpu"))  # not by the thread: it stops launches
    save = functools.partial(_save_at_times, state, host, every)
    threading.Thread(target=save, daemon=True).start()
    clock = ShareClock(seconds)
    clock.begin([(HOST_THREAD, alone, None)])
    while clock.going():
        trainer.step()
        clock.mark(BUSY)
        clock.step()


def _save_at_times(state: Any, host: Any, every: float) -> None:
    beside = torch.cuda.Stream() if DEVICE == "cuda" else None
    with tempfile.TemporaryFile(dir=directory()) as file:
        while True:
            time.sleep(every)
            with torch.cuda.stream(beside):
                host.copy_(state, non_blocking=True)
            if beside is not None:
                beside.synchronize()
            file.seek(0)
            torch.save(host, file)
            file.flush()
            os.fsync(file.fileno())
