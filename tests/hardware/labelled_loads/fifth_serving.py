"""One-GPU loads of the fifth blind trial that answer: no rule was made with them in sight."""

import itertools
import multiprocessing
import random
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import torch

from tests.hardware.labelled_loads.alone import recorded
from tests.hardware.labelled_loads.blind_alone import Decoder
from tests.hardware.labelled_loads.blind_input import words
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.fifth_networks import Reader
from tests.hardware.labelled_loads.fourth_networks import die_with_parent
from tests.hardware.labelled_loads.labels import BUSY, PCIE, UNKNOWN
from tests.hardware.labelled_loads.serving import POLL_EVERY
from tests.hardware.labelled_loads.third_alone import Mark, steadily
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, pinned, synchronize


class Swapping(Decoder):
    """What it has seen of a conversation comes from the host's memory, and goes back there."""

    def stored(self) -> list[Any]:
        """Room for one conversation on the host."""
        layers: Any = self._layers
        return [
            torch.empty_like(layer.cache, device="cpu", pin_memory=DEVICE == "cuda").zero_()
            for layer in layers
        ]

    def come(self, stored: Sequence[Any]) -> None:
        """Go on with this conversation."""
        layers: Any = self._layers
        for layer, place in zip(layers, stored, strict=True):
            layer.cache.copy_(place, non_blocking=True)

    def leave(self, stored: Sequence[Any]) -> None:
        """Keep it on the host."""
        layers: Any = self._layers
        for layer, place in zip(layers, stored, strict=True):
            place.copy_(layer.cache, non_blocking=True)


def swapped_caches(seconds: float, *, share: float, conversations: int, **sizes: int) -> None:
    """Long conversations in turns: too many for the GPU, so the keys and values of each come from
    the host before its answer and go back after it. Nothing is computed beside the copies."""
    with torch.no_grad():
        decoder = Swapping(**sizes)
        kept = [decoder.stored() for _ in range(conversations)]

        def grow() -> None:
            decoder.grow()
            decoder.places.add_(1).remainder_(decoder.positions)

        run, turns = recorded(grow), itertools.cycle(kept)

        def swap() -> None:
            decoder.come(kept[0])
            decoder.leave(kept[0])

        copying = length_of(swap, sized(0.4, 0.05))
        each = length_of(run, sized(0.4, 0.05), at_once=sized(20, 2))
        tokens = max(1, round(copying * (1 - share) / share / each))
        told = pinned(torch.zeros_like(decoder.tokens, device="cpu"))

        def step(mark: Mark) -> None:
            stored = next(turns)
            decoder.come(stored)
            mark(PCIE)
            for _ in range(tokens):
                run()
            mark(BUSY)
            told.copy_(decoder.tokens, non_blocking=True)
            decoder.leave(stored)
            mark(PCIE)
            synchronize()

        steadily(seconds, step)


def _ask(asking: socket.socket, asked: socket.socket) -> None:
    """Requests at random (Poisson), at a pace that changes; at times nobody asks."""
    die_with_parent()
    asked.close()
    numbers = random.Random(0)
    (most,) = struct.unpack("d", asking.recv(8))
    while True:
        end = time.monotonic() + numbers.uniform(0.8, 2.4)
        pace = most * numbers.uniform(0.4, 1.0)
        while time.monotonic() < end:
            time.sleep(numbers.expovariate(pace))
            asking.sendall(b"?")
        time.sleep(numbers.uniform(0.2, 0.8))


def _collected(asked: socket.socket, queued: int, most: int, window: float) -> int:
    """Requests in the queue when it is full, or when the first has waited for so long (s)."""
    end = time.monotonic() + (window if queued else POLL_EVERY)
    while queued < most and (left := end - time.monotonic()) > 0:
        if select.select([asked], [], [], left)[0]:
            if not queued:
                end = time.monotonic() + window
            queued += len(asked.recv(4096))
    return queued


def embedding_queue(
    seconds: float, *, batch: int, length: int, layers: int, width: int, window: float
) -> None:
    """A server of embeddings gathers requests for a batch, or until the first has waited a while.

    `window`: how long, in passes of the network, which are of one size. While it gathers, and when
    nobody asks, the GPU waits for nothing that is lacking.
    """
    batch, length = sized((batch, length), (2, 8))
    asking, asked = socket.socketpair()
    client = multiprocessing.get_context("fork").Process(
        target=_ask, args=(asking, asked), daemon=True
    )
    client.start()
    asking.close()
    with torch.no_grad():
        with torch.device(DEVICE):
            network = Reader(layers, width).to(torch.bfloat16)
            tokens = torch.randint(0, words(), (batch, length))
        made = network(tokens)
        run, told = recorded(lambda: made.copy_(network(tokens))), pinned(made.cpu())
        each = length_of(run, sized(0.5, 0.05), at_once=4)
        asked.sendall(struct.pack("d", 0.8 * batch / (each * (1 + window))))
        clock, queued = ShareClock(seconds), 0
        clock.begin()
        while clock.going():
            queued = _collected(asked, queued, batch, window * each)
            clock.mark(UNKNOWN)
            if queued:
                run()
                told.copy_(made, non_blocking=True)
                clock.mark(BUSY)
                synchronize()
                queued = max(0, queued - batch)
            clock.tell()
    client.kill()
