"""Training on one GPU whose data comes too late: from decoders, a disk, or a sender."""

import itertools
import mmap
import multiprocessing
import os
import queue
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.hardware import networks
from tests.hardware.device import DEVICE, IMAGE, synchronize
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, CPU, DISK, NETWORK
from tests.hardware.labelled_loads.work import sized

PIECE = 4 << 20
PACE_SECONDS = 0.01
FILE_BYTES = 2 << 30
PACKED = zlib.compress(np.random.default_rng(0).integers(0, 32, 1 << 20, np.uint8).tobytes(), 1)
"""1 MiB that takes milliseconds to unpack; other threads of the process run meanwhile."""


def nameless_file(size: int) -> int:
    """A file of so many bytes on the disk and not in the page cache, open for direct reads.

    It has no name any more when this returns: it is gone with the last process that holds it open.
    """
    path = Path(os.environ.get("TMPDIR") or Path.cwd()) / f"labelled-{os.getpid()}.data"
    piece = mmap.mmap(-1, PIECE)  # O_DIRECT wants aligned memory
    piece.write(np.random.default_rng(0).bytes(PIECE))
    writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        reading = os.open(path, os.O_RDONLY | os.O_DIRECT)
    finally:
        path.unlink()
    for _ in range(size // PIECE):
        os.write(writing, piece)
    os.fsync(writing)
    os.close(writing)
    return reading


def send_paced(address: tuple[str, int], bytes_per_second: float) -> None:
    """Send at a steady pace to who listens there, until no one does."""
    piece = bytes(int(bytes_per_second * PACE_SECONDS))
    with socket.create_connection(address) as connection:
        start, sent = time.monotonic(), 0
        try:
            while True:
                connection.sendall(piece)
                sent += len(piece)
                time.sleep(max(0.0, start + sent / bytes_per_second - time.monotonic()))
        except OSError:
            return


def decode(cpu_seconds: float) -> None:
    """Keep a core busy for so long."""
    end = time.thread_time() + cpu_seconds
    while time.thread_time() < end:
        zlib.decompress(PACKED)


def train_on(batches: Iterable[Any], seconds: float, cause: str, *, wait: bool = False) -> None:
    """Train ResNet-50 on uint8 batches as they come; what the GPU waits for them is the cause's.

    `wait`: the next batch is made only when the GPU is done, as a loop does that prints its loss.
    """
    network = networks.resnet50().to(DEVICE)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)
    clock = None
    for place, batch in enumerate(batches):
        if clock is not None:
            clock.mark(cause)
        seen = batch.to(DEVICE, non_blocking=True).float() / 255
        labels = torch.zeros(len(seen), dtype=torch.long, device=DEVICE)
        functional.cross_entropy(network(seen), labels).backward()
        optimiser.step()
        optimiser.zero_grad()
        if wait:
            synchronize()
        if clock is None and place >= 8:
            clock = ShareClock(seconds)
            clock.begin()
        elif clock is not None:
            clock.mark(BUSY)
            clock.step()
            if not clock.going():
                return


def _random_batch(batch: int) -> Any:
    return torch.randint(0, 255, (sized(batch, 2), *IMAGE), dtype=torch.uint8)


class Decoded(IterableDataset):
    """Each batch costs so many seconds of a core."""

    def __init__(self, batch: int, cpu_seconds: float) -> None:
        self._batch, self._cpu_seconds = batch, cpu_seconds

    def __iter__(self) -> Iterator[Any]:
        made = _random_batch(self._batch)
        while True:
            decode(self._cpu_seconds)
            yield made.clone()


def _loaded(dataset: Any, workers: int) -> Any:
    """A DataLoader whose forked workers make whole batches."""
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        pin_memory=DEVICE == "cuda",
        multiprocessing_context="fork" if workers else None,
    )


def processes(seconds: float, *, batch: int, cpu_seconds: float, workers: int) -> None:
    """Worker processes decode: too few of them. 0: the main process does, between two steps."""
    loader = _loaded(Decoded(batch, cpu_seconds), workers)
    train_on(loader, seconds, CPU, wait=not workers)


def threads(seconds: float, *, batch: int, cpu_seconds: float, workers: int) -> None:
    """Threads of the training process decode: too few of them."""
    made: queue.Queue[Any] = queue.Queue(2 * workers)

    def work() -> None:
        for decoded in Decoded(batch, cpu_seconds):
            made.put(decoded)

    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    train_on(iter(made.get, None), seconds, CPU)


Reader = tuple[Callable[[int], Any], Callable[[], None]]
"""Reads the bytes at a place of a file; lets the caches forget what was read."""


class StoredImages(IterableDataset):
    """Each image costs one read of so many bytes that no cache holds."""

    def __init__(self, way: str, file: int, bytes_per_image: int, batch: int) -> None:
        """`way` is one of READERS; `file` was opened for direct reads."""
        self._way, self._file = way, file
        self._bytes, self._batch = bytes_per_image, batch

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info().id
        read, forget = READERS[self._way](self._file, self._bytes)
        places = os.fstat(self._file).st_size // self._bytes
        # workers begin far from each other and never read what another has just read
        turns = itertools.count(worker * places // get_worker_info().num_workers)
        made = _random_batch(self._batch)
        first = made.view(len(made), -1)
        while True:
            for image in range(len(made)):
                stored = read(next(turns) % places * self._bytes)
                first[image, 0] = stored[0]  # what was read is looked at
            forget()
            yield made.clone()


def _read_direct(file: int, length: int) -> Reader:
    buffer = mmap.mmap(-1, length)

    def read(at: int) -> Any:
        os.preadv(file, [buffer], at)
        return buffer

    return read, lambda: None


def _reopened(file: int) -> int:
    """The same file, through the page cache."""
    return os.open(f"/proc/self/fd/{file}", os.O_RDONLY)


def _forget(cached: int) -> None:
    """Empty the page cache of the whole file: of a part, folios that reach beyond it would stay."""
    os.posix_fadvise(cached, 0, 0, os.POSIX_FADV_DONTNEED)


def _read_cached(file: int, length: int) -> Reader:
    cached = _reopened(file)
    return lambda at: os.pread(cached, length, at), lambda: _forget(cached)


def _read_mapped(file: int, length: int) -> Reader:
    cached = _reopened(file)
    mapped = mmap.mmap(cached, 0, prot=mmap.PROT_READ)

    def forget() -> None:
        mapped.madvise(mmap.MADV_DONTNEED)
        _forget(cached)

    return lambda at: mapped[at : at + length], forget


READERS: dict[str, Callable[[int, int], Reader]] = {
    "direct": _read_direct,
    "cached": _read_cached,
    "mapped": _read_mapped,
}


def disk(seconds: float, *, way: str, bytes_per_image: int, batch: int, workers: int) -> None:
    """Worker processes read cold data, and do nothing else with it."""
    file = nameless_file(sized(FILE_BYTES, 64 << 20))
    train_on(_loaded(StoredImages(way, file, bytes_per_image, batch), workers), seconds, DISK)


class ReceivedImages(IterableDataset):
    """Batches as they arrive from the first one who connects."""

    def __init__(self, listener: socket.socket, batch: int) -> None:
        self._listener, self._batch = listener, batch

    def __iter__(self) -> Iterator[Any]:
        connection, _ = self._listener.accept()
        made = _random_batch(self._batch)
        room = memoryview(made.numpy()).cast("B")
        while True:
            filled = 0
            while filled < len(room):
                filled += connection.recv_into(room[filled:])
            yield made.clone()


def network(seconds: float, *, batch: int, bytes_per_second: float) -> None:
    """One worker receives over TCP at a steady pace; the sender is no child of the trainer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        trainer = multiprocessing.get_context("fork").Process(
            target=lambda: train_on(_loaded(ReceivedImages(listener, batch), 1), seconds, NETWORK)
        )
        trainer.start()
        send_paced(listener.getsockname(), bytes_per_second)
        trainer.join()
