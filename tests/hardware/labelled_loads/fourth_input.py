"""One-GPU loads of the fourth blind trial whose data comes late: no rule was made with them."""

import contextlib
import io
import itertools
import multiprocessing
import os
import queue
import random
import sqlite3
import tarfile
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.hardware.labelled_loads.blind_input import PREPARED, directory, words
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.fourth_networks import Encoder, die_with_parent
from tests.hardware.labelled_loads.labels import BUSY, CPU, DISK, Level
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.third_networks import blank
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, IMAGE, pinned, synchronize

LENGTH = 512
"""Words of a sequence."""

BLOB = 512 << 10
"""Bytes of one stored sample."""


class Fitted:
    """An encoder that learns from batches: images of bytes, or sequences of words."""

    def __init__(self, first: Any) -> None:
        self._seen = first.to(DEVICE)
        with torch.device(DEVICE):
            network = Encoder(12, 768, words())
        self._trainer = Trainer(
            network, lambda network: network(self._seen).float().square().mean()
        )
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
        wait: bool = False,
        levels: Sequence[Level] = (),
    ) -> None:
        """One step a batch; what the GPU waits for a batch is the cause's.

        `wait`: the next batch is asked for only when the GPU is done.
        """
        clock = None
        for place, batch in enumerate(batches):
            if clock is not None:
                clock.mark(cause)
            self._seen.copy_(batch, non_blocking=True)
            self._trainer.step()
            if clock is not None:
                clock.mark(BUSY)
                clock.step()
                if not clock.going():
                    return
            if wait:
                synchronize()
            if clock is None and place >= PREPARED:
                clock = ShareClock(seconds)
                clock.begin(levels)


class Amount:
    """How much work a batch is, which threads share."""

    def __init__(self, value: float) -> None:
        self.value = value


def come_every(batches: Iterator[Any], amount: Any, seconds: float, ahead: int) -> None:
    """Find the amount with which a batch comes every so often; so many are made ahead."""
    for _ in range(ahead):
        next(batches)
    since, done = time.monotonic(), 0
    while (passed := time.monotonic() - since) < sized(1.5, 0.1) or done < 2:
        next(batches)
        done += 1
    amount.value *= seconds * done / passed
    for _ in range(ahead):
        next(batches)


def made_by_threads(make: Callable[[int], Iterator[Any]], threads: int) -> Iterator[Any]:
    """Batches of several threads of this process; two wait at most."""
    made: queue.Queue[Any] = queue.Queue(2)

    def work(number: int) -> None:
        for batch in make(number):
            made.put(batch)

    for number in range(threads):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    return iter(made.get, None)


# Disk


def _database(connections: int, samples: int) -> tuple[list[sqlite3.Connection], int]:
    """Open connections to a database of samples that has no name any more, and its open file."""
    handle, name = tempfile.mkstemp(suffix=".sqlite", dir=directory())
    try:
        opened = [sqlite3.connect(name, check_same_thread=False) for _ in range(connections)]
        writing = sqlite3.connect(name)
    finally:
        Path(name).unlink()
    block = os.urandom(8 * BLOB)
    rows = ((at, block[at * 4096 % (7 * BLOB) :][:BLOB]) for at in range(samples))
    with contextlib.closing(writing):
        for pragma in ("page_size=65536", "journal_mode=OFF", "synchronous=OFF"):
            writing.execute(f"PRAGMA {pragma}")
        writing.execute("CREATE TABLE samples (place INTEGER PRIMARY KEY, image BLOB)")
        writing.executemany("INSERT INTO samples VALUES (?, ?)", rows)
        writing.commit()
    for connection in opened:
        connection.execute("PRAGMA cache_size=16")
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return opened, handle


def from_database(seconds: float, *, batch: int, share: float, samples: int, threads: int) -> None:
    """Threads of the trainer ask a database file for samples, cold, each over its connection."""
    samples = sized(samples, 16 * threads)
    connections, file = _database(threads, samples)
    amount = Amount(sized(64, 2))
    each = samples // threads

    def make(number: int) -> Iterator[Any]:
        turns = list(range(number * each, (number + 1) * each))
        random.Random(number).shuffle(turns)
        places = itertools.cycle(turns)
        made = blank(batch)
        first = made.view(len(made), -1)
        wanted = "SELECT image FROM samples WHERE place = ?"
        while True:
            for image in range(max(1, round(amount.value))):
                (stored,) = connections[number].execute(wanted, (next(places),)).fetchone()
                first[image % len(made), 0] = stored[-1]
                if image % 16 == 0:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            yield pinned(made.clone())

    fitted, batches = Fitted(blank(batch)), made_by_threads(make, threads)
    come_every(batches, amount, fitted.period(share), threads + 2)
    fitted.learn(batches, seconds, DISK)


def _archive(members: int) -> int:
    """A tar file without a name, on the disk alone; open."""
    handle, name = tempfile.mkstemp(suffix=".tar", dir=directory())
    Path(name).unlink()
    block = os.urandom(8 * BLOB)
    with os.fdopen(os.dup(handle), "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
        for place in range(members):
            header = tarfile.TarInfo(f"{place:06}.raw")
            header.size = BLOB
            archive.addfile(header, io.BytesIO(block[place * 4096 % (7 * BLOB) :][:BLOB]))
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return handle


def _unpack(shard: int, shape: tuple[int, ...], amount: Any, sent: Any, room: Any) -> None:
    """A process: member after member of an archive, from its beginning to its end and again.

    For each batch one number is sent; the images lie in shared memory.
    """
    die_with_parent()
    images = torch.from_numpy(np.frombuffer(room, np.uint8).reshape(shape))
    first = images.view(len(images), -1)
    done = 0
    while True:
        with (
            open(f"/proc/self/fd/{shard}", "rb", buffering=0) as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            for member in archive:
                file.seek(member.offset_data)  # tarfile itself would read it in small pieces
                first[done % len(images), 0] = file.read(member.size)[-1]
                done += 1
                if done >= amount.value:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    sent.put(done)
                    done = 0
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_archives(seconds: float, *, batch: int, share: float, members: int, shards: int) -> None:
    """Processes read tar files from beginning to end, as WebDataset does; they are cold."""
    context = multiprocessing.get_context("fork")
    first = blank(batch)
    amount, sent = context.Value("d", sized(64, 2)), context.Queue(2)
    rooms = [context.RawArray("B", first.numel()) for _ in range(shards)]
    workers = [
        context.Process(
            target=_unpack,
            args=(_archive(sized(members, 8)), tuple(first.shape), amount, sent, room),
            daemon=True,
        )
        for room in rooms
    ]
    for worker in workers:
        worker.start()
    stored = pinned(first)

    def batches() -> Iterator[Any]:
        turns = itertools.cycle(rooms)
        while True:
            sent.get()
            content = torch.from_numpy(np.frombuffer(next(turns), np.uint8))
            stored[:, 0, 0, 0].copy_(content.view(len(stored), -1)[:, 0])
            yield stored

    fitted, come = Fitted(first), batches()
    come_every(come, amount, fitted.period(share), shards + 3)
    fitted.learn(come, seconds, DISK)
    for worker in workers:
        worker.kill()


# Processors


class Merger:
    """Splits words as byte pair encoding does, in plain Python."""

    def __init__(self) -> None:
        numbers = random.Random(0)
        letters = "etaoinshrdlucmfwypvbgk"
        self._known = {
            a + b: place for place, (a, b) in enumerate(itertools.product(letters, repeat=2))
        }
        short = list(self._known)
        for place in range(len(short), 8000):
            self._known.setdefault("".join(numbers.choices(short, k=2)), place)
        self._words = [
            "".join(numbers.choices(letters, k=numbers.randint(2, 12))) for _ in range(4000)
        ]

    def split(self, numbers: random.Random, count: int) -> list[int]:
        """Tokens of so many words, drawn anew."""
        found: list[int] = []
        for word in numbers.choices(self._words, k=count):
            parts = list(word)
            while len(parts) > 1:
                pairs = [self._known.get(a + b, 1 << 30) for a, b in itertools.pairwise(parts)]
                least = min(pairs)
                if least == 1 << 30:
                    break
                at = pairs.index(least)
                parts[at : at + 2] = ["".join(parts[at : at + 2])]
            found.extend(self._known.get(part, ord(part[0])) for part in parts)
        return found


_merger: list[Merger] = []
"""That of this worker process."""


def _begin_worker() -> None:
    die_with_parent()
    _merger.append(Merger())


def _tokenised(turn: int, count: int, shape: tuple[int, int]) -> Any:
    found = _merger[0].split(random.Random(turn), count)
    return np.resize(np.array(found, np.int64) % words(), shape)


def pooled_tokenising(seconds: float, *, batch: int, share: float, workers: int) -> None:
    """A pool of processes tokenises text; batches come pickled through pipes, in their order."""
    shape, numbers = (sized(batch, 2), sized(LENGTH, 16)), itertools.count()
    with multiprocessing.get_context("fork").Pool(workers, _begin_worker) as pool:
        fitted = Fitted(torch.zeros(shape, dtype=torch.int64))

        def asked(count: int) -> Any:
            return pool.apply_async(_tokenised, (next(numbers), count, shape))

        def batches(count: int) -> Iterator[Any]:
            coming = deque(asked(count) for _ in range(2 * workers))
            while True:
                made = coming.popleft().get()
                coming.append(asked(count))
                yield pinned(torch.from_numpy(made))

        some = sized(10_000, 50)
        for done in [asked(some) for _ in range(2 * workers)]:
            done.wait()
        since = time.monotonic()
        for done in [asked(some) for _ in range(4 * workers)]:
            done.get()
        each = (time.monotonic() - since) / (4 * workers)
        count = max(1, round(some * fitted.period(share) / each))
        fitted.learn(batches(count), seconds, CPU)


def _resized(image: Any, side: int) -> Any:
    """Bilinear, by NumPy: the height, then the width."""
    for _ in range(2):
        places = np.linspace(0, len(image) - 1.001, side)
        above = places.astype(np.int64)
        part = (places - above).astype(np.float32)[:, None, None]
        image = image[above] * (1 - part) + image[above + 1] * part
        image = np.ascontiguousarray(image.swapaxes(0, 1))
    return image


def resizing_threads(seconds: float, *, batch: int, share: float, threads: int) -> None:
    """Threads of the trainer bring photographs to one size, by NumPy.

    What they take from the thread that launches counts as theirs: a step is measured before them.
    """
    fitted = Fitted(blank(batch))
    photographs = np.random.default_rng(0).integers(0, 255, (8, 600, 800, 3), np.uint8)
    amount = Amount(sized(16, 1))

    def make(number: int) -> Iterator[Any]:
        made, turns = blank(batch), itertools.cycle(range(len(photographs)))
        while True:
            for place in range(max(1, round(amount.value))):
                photograph = photographs[next(turns)].astype(np.float32)
                image = np.rint(_resized(photograph, IMAGE[1])).astype(np.uint8)
                made[place % len(made)] = torch.from_numpy(image).permute(2, 0, 1)
            yield pinned(made.clone())

    batches = made_by_threads(make, threads)
    come_every(batches, amount, fitted.period(share), threads + 2)
    fitted.learn(batches, seconds, CPU, levels=[(CPU, fitted.step_seconds, None)])
