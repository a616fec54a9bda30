"""One-GPU loads of the fifth blind trial that read from a disk or write to it: no rule knows
them."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.hardware.labelled_loads.blind_input import directory, words
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.fifth_networks import aligned
from tests.hardware.labelled_loads.labels import BUSY, DISK, PCIE
from tests.hardware.labelled_loads.models import LanguageModel
from tests.hardware.labelled_loads.third_alone import Mark, unmarked
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, synchronize

PIECE = 16 << 20
"""Bytes read or written at once."""


class Taken:
    """How long something takes: a running mean, as a disk is now faster and now slower."""

    WEIGHT = 0.3

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        run()
        began = time.monotonic()
        run()
        self.seconds = time.monotonic() - began

    def run(self) -> None:
        """Do it once more."""
        began = time.monotonic()
        self._run()
        self.seconds += self.WEIGHT * (time.monotonic() - began - self.seconds)


def in_rounds(seconds: float, step: Callable[[Mark], None]) -> None:
    """As `steadily`, but long steps, of which one is enough to warm up."""
    step(unmarked)
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        step(clock.mark)
        clock.step()


def _nameless() -> int:
    """An empty file without a name, open for direct reads and writes."""
    path = Path(directory()) / f"labelled-{os.getpid()}.data"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    path.unlink()
    return file


def _write(file: int, room: Any, at: int) -> None:
    """All of an aligned room at this place; it is on the disk afterwards."""
    for first in range(0, len(room), PIECE):
        os.pwrite(file, room[first : first + PIECE], at + first)
    os.fsync(file)


def _read(file: int, room: Any) -> None:
    """The beginning of the file, past the page cache."""
    for first in range(0, len(room), PIECE):
        if os.preadv(file, [room[first : first + PIECE]], first) <= 0:
            raise OSError("the file is too short")


def checkpoint_rounds(
    seconds: float, *, batch: int, length: int, layers: int, width: int, share: float
) -> None:
    """Checkpoints are judged in rounds: one is read from the disk by the main thread, past the
    page cache, goes to the GPU as a whole, and is tried on text for a while."""
    batch, length = sized((batch, length), (2, 8))
    with torch.device(DEVICE):
        network = LanguageModel(layers, width).to(torch.bfloat16).requires_grad_(False)
        tokens = torch.randint(0, words(), (batch, length))
        weights = torch.cat([weight.flatten() for weight in network.parameters()])
    at = 0
    for weight in network.parameters():  # all lie in one piece, as they do in the file
        weight.data = weights[at : at + weight.numel()].view_as(weight)
        at += weight.numel()
    size = -(-2 * len(weights) // PIECE) * PIECE
    room, values = aligned(size)
    stored, file = values.view(torch.bfloat16)[: len(weights)], _nameless()
    stored.copy_(weights)
    _write(file, room, 0)
    with torch.no_grad():
        reading = Taken(lambda: _read(file, room))
        trying = length_of(lambda: network(tokens), sized(0.5, 0.05), at_once=4)

        def step(mark: Mark) -> None:
            reading.run()
            mark(DISK)
            weights.copy_(stored, non_blocking=True)
            mark(PCIE)
            for _ in range(max(1, round(reading.seconds * (1 - share) / share / trying))):
                network(tokens)
            mark(BUSY)
            synchronize()

        in_rounds(seconds, step)


class Reaction:
    """Two substances that spread in a cube and feed on each other (Gray and Scott), in FP32."""

    def __init__(self, side: int) -> None:
        with torch.device(DEVICE):
            self.values = torch.rand(2, side, side, side)
            self._spread = torch.tensor((0.12, 0.06)).view(2, 1, 1, 1)

    def advance(self) -> None:
        """One step of time."""
        bent = self.values * -6.0
        for axis in (1, 2, 3):
            for by in (1, -1):
                bent += self.values.roll(by, axis)
        feeding, fed = self.values.unbind()
        taken = feeding * fed.square()
        self.values.addcmul_(bent, self._spread)
        feeding.sub_(taken).add_((1 - feeding) * 0.035)
        fed.add_(taken).sub_(fed * 0.1)
        self.values.clamp_(0.0, 1.0)


def trajectory_writing(seconds: float, *, side: int, share: float, most: int) -> None:
    """A simulation whose state is copied to the host and written after every so many steps.

    The main thread writes, past the page cache, and goes on when all is on the disk. The file
    grows to so many bytes (`most`), then is written again from its beginning.
    """
    reaction = Reaction(sized(side, 32))
    size = reaction.values.numel() * 4
    room, values = aligned(size)
    stored, file = values.view(torch.float32).view_as(reaction.values), _nameless()
    places = itertools.cycle(range(0, max(1, sized(most, 4 * size) // size) * size, size))
    with torch.no_grad():
        each = length_of(reaction.advance, sized(0.5, 0.05), at_once=sized(20, 2))
        writing = Taken(lambda: _write(file, room, next(places)))

        def step(mark: Mark) -> None:
            for _ in range(max(1, round(writing.seconds * (1 - share) / share / each))):
                reaction.advance()
            mark(BUSY)
            stored.copy_(reaction.values, non_blocking=True)
            mark(PCIE)
            synchronize()
            writing.run()
            mark(DISK)

        in_rounds(seconds, step)
