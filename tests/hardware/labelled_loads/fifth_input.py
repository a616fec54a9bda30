"""One-GPU loads of the fifth blind trial that wait for the host's processors: no rule knows one."""

import itertools
import mmap
import multiprocessing
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.hardware.labelled_loads.blind_input import words
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.fifth_networks import (
    PATCH,
    ImagesAndTexts,
    pieces,
    reachable,
)
from tests.hardware.labelled_loads.fourth_input import Amount, come_every
from tests.hardware.labelled_loads.fourth_networks import Encoder, die_with_parent
from tests.hardware.labelled_loads.labels import BUSY, CPU, PCIE, Level
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.third_networks import blank
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, pinned, synchronize

READY = 4
"""Batches before the steady phase."""


class Learner:
    """A network that learns from one batch after the other."""

    def __init__(self, network: Any, first: Any, loss: Callable[[Any, Any], Any]) -> None:
        """`loss` of the network on a batch on the GPU."""
        self._seen = first.to(DEVICE)
        self._trainer = Trainer(network, lambda network: loss(network, self._seen))
        self.step_seconds = length_of(self._trainer.step, sized(1.0, 0.1), at_once=4)
        """What a step takes whose data is there."""

    def period(self, share: float) -> float:
        """Seconds from batch to batch where the GPU waits for so large a share of them."""
        return self.step_seconds / (1 - share)

    def learn(
        self,
        batches: Iterable[Any],
        seconds: float,
        cause: str,
        *,
        arrive: bool = False,
        levels: Sequence[Level] = (),
    ) -> None:
        """One step a batch; what the GPU waits for a batch is the cause's, the copy is not.

        `arrive`: the host waits until the copy is done, after which others may use its memory.
        """
        clock = None
        for place, batch in enumerate(batches):
            if clock is not None:
                clock.mark(cause)
            self._seen.copy_(batch, non_blocking=True)
            if clock is not None:
                clock.mark(PCIE)
            if arrive:
                synchronize()
            self._trainer.step()
            if clock is not None:
                clock.mark(BUSY)
                clock.step()
                if not clock.going():
                    return
            elif place >= READY:
                clock = ShareClock(seconds)
                clock.begin(levels)


SIDE = 112
"""Points along each side of a frame."""


class Film:
    """Frames as a codec keeps them: packed, as what changed since the one before."""

    def __init__(self, number: int) -> None:
        numbers = np.random.default_rng(number)
        shape = (3, SIDE, SIDE)
        changes = numbers.integers(0, 12, (8, *shape), np.uint8)
        packed = [zlib.compress(change.tobytes(), 1) for change in changes]
        self._changes = itertools.cycle(packed)
        self._frame = np.zeros(shape, np.uint8)

    def unpack(self) -> Any:
        """The next frame: channel, row, column."""
        change = np.frombuffer(zlib.decompress(next(self._changes)), np.uint8)
        self._frame += change.reshape(self._frame.shape)
        wide = self._frame.astype(np.uint16)
        wide[:, 1:-1] = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) // 4
        wide[:, :, 1:-1] = (wide[:, :, :-2] + 2 * wide[:, :, 1:-1] + wide[:, :, 2:]) // 4
        return wide.astype(np.uint8)


def _unpack(number: int, room: Any, amount: Any, free: Any, full: Any) -> None:
    """A process: unpacks `amount` frames for each batch; the last of them stay in the room."""
    die_with_parent()
    film, frames = Film(number), np.frombuffer(room, np.uint8).reshape(-1, 3, SIDE, SIDE)
    places = itertools.cycle(range(len(frames)))
    while True:
        free.acquire()
        for _ in range(max(1, round(amount.value))):
            frames[next(places)] = film.unpack()
        full.release()


def video_frames(
    seconds: float, *, clips: int, frames: int, layers: int, width: int, share: float, workers: int
) -> None:
    """Processes unpack films on the host, some frames for each that is seen, as one who seeks in
    films must. Clips lie in memory that is shared with the trainer, from where the GPU takes them.
    """
    clips = sized(clips, 2)
    shape = (clips, frames, 3, SIDE, SIDE)
    context = multiprocessing.get_context("fork")
    amount = context.Value("d", sized(100, 8))
    shared = [mmap.mmap(-1, int(np.prod(shape))) for _ in range(workers)]
    signals = [(context.Semaphore(1), context.Semaphore(0)) for _ in shared]
    unpacking = [
        context.Process(target=_unpack, args=(number, room, amount, *signals[number]), daemon=True)
        for number, room in enumerate(shared)
    ]
    for process in unpacking:
        process.start()
    rooms = [reachable(memoryview(room)).view(shape) for room in shared]

    def batches() -> Iterator[Any]:
        for room, (free, full) in itertools.cycle(zip(rooms, signals, strict=True)):
            full.acquire()
            yield room
            free.release()

    with torch.device(DEVICE):
        network = Encoder(layers, width, 1, enter=2 * 3 * PATCH**2)
    learner = Learner(
        network, rooms[0], lambda network, seen: network(pieces(seen)).float().square().mean()
    )
    come = batches()
    come_every(come, amount, learner.period(share), workers + 1)
    learner.learn(come, seconds, CPU, arrive=True)
    for process in unpacking:
        process.kill()


def _augment(photograph: Any, numbers: random.Random, room: Any) -> None:
    """Cut out, brought to half its size, mirrored, in other colours, and blurred."""
    side = 2 * room.shape[1]
    top = numbers.randint(0, photograph.shape[0] - side)
    left = numbers.randint(0, photograph.shape[1] - side)
    cut = photograph[top : top + side, left : left + side].astype(np.float32)
    image = (cut[::2, ::2] + cut[1::2, ::2] + cut[::2, 1::2] + cut[1::2, 1::2]) / 4
    if numbers.random() < 0.5:
        image = image[:, ::-1]
    tint = np.array([numbers.uniform(0.7, 1.3) for _ in range(3)], np.float32)
    image = image * tint + np.float32(numbers.uniform(-20, 20))
    image[1:-1] = (image[:-2] + 2 * image[1:-1] + image[2:]) / 4
    image[:, 1:-1] = (image[:, :-2] + 2 * image[:, 1:-1] + image[:, 2:]) / 4
    room[:] = np.clip(image, 0, 255).astype(np.uint8).transpose(2, 0, 1)


def _in_parts(work: Callable[[int, Any], None], parts: int, first: Any) -> Iterator[Any]:
    """Batches each of which a pool of threads makes together; two are begun ahead."""
    pool = ThreadPoolExecutor(parts)
    rooms = itertools.cycle([pinned(first.clone()) for _ in range(6)])
    coming: deque[tuple[Any, list[Any]]] = deque()

    def begin() -> None:
        room = next(rooms)
        made = [pool.submit(work, part, room.numpy()) for part in range(parts)]
        coming.append((room, made))

    begin()
    begin()
    while True:
        room, made = coming.popleft()
        for part in made:
            part.result()
        begin()
        yield room


def augmented_pairs(
    seconds: float,
    *,
    batch: int,
    length: int,
    layers: int,
    width: int,
    reading: int,
    share: float,
    threads: int,
) -> None:
    """Images and their texts (contrastive); a pool of threads of the trainer augments each batch.

    What they take from the thread that launches counts as theirs: a step is measured before them.
    """
    first, length = blank(batch), sized(length, 8)
    photographs = np.random.default_rng(0).integers(0, 255, (8, 480, 640, 3), np.uint8)
    amount, turns = Amount(sized(8, 1)), itertools.count()
    with torch.device(DEVICE):
        network = ImagesAndTexts(layers, width, reading)
        texts = torch.randint(0, words(), (len(first), length))
        same = torch.arange(len(first))

    def augment(part: int, room: Any) -> None:
        numbers = random.Random(next(turns))
        for place in range(max(1, round(amount.value))):
            photograph = numbers.choice(photographs)
            _augment(photograph, numbers, room[(part + place * threads) % len(room)])

    learner = Learner(
        network, first, lambda network, seen: functional.cross_entropy(network(seen, texts), same)
    )
    batches = _in_parts(augment, threads, first)
    come_every(batches, amount, learner.period(share), 4)
    learner.learn(batches, seconds, CPU, levels=[(CPU, learner.step_seconds, None)])
