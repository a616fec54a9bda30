"""Where the images of a load come from: memory, a disk, decoding processes, a network."""

import mmap
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.hardware.training import DEVICE, IMAGE, pinned

PIXELS = 3 * 224 * 224
BLOCK = 4096  # bytes: O_DIRECT reads and writes whole blocks
PIECE = 4 << 20
PACE_SECONDS = 0.01


def fixed(batch: int, shape: tuple[int, ...] = IMAGE, *, on_gpu: bool = False) -> Iterator[Any]:
    """The same random images again and again, in the host's memory or on the GPU."""
    images = torch.rand(batch, *shape, device=DEVICE if on_gpu else "cpu")
    while True:
        yield images


def shuffled(batch: int, shape: tuple[int, ...], kept: int = 8192) -> Iterator[Any]:
    """Slices of a set in pageable memory, copied to the GPU step by step as the paper's were."""
    images = torch.rand(max(kept, batch), *shape)
    while True:
        for start in range(0, len(images) - batch + 1, batch):
            yield images[start : start + batch]


def slow(batch: int, seconds: float) -> Iterator[Any]:
    """A source that sleeps before each batch: nothing on the host shows why."""
    images = torch.rand(batch, *IMAGE)
    while True:
        time.sleep(seconds)
        yield images


def loaded(dataset: Any, batch: int, workers: int) -> Any:
    """A DataLoader whose workers are forked: they share what the parent holds open."""
    return DataLoader(
        dataset,
        batch_size=batch,
        num_workers=workers,
        pin_memory=DEVICE == "cuda",
        multiprocessing_context="fork",
    )


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


class ColdReads(IterableDataset):
    """Each image costs one direct read of so many bytes somewhere in the file."""

    def __init__(self, file: int, bytes_per_image: int) -> None:
        self._file = file
        self._bytes = bytes_per_image // BLOCK * BLOCK

    def __iter__(self) -> Iterator[Any]:
        room = os.fstat(self._file).st_size - self._bytes
        buffer = mmap.mmap(-1, self._bytes)
        turn = get_worker_info().id * 97
        while True:
            os.preadv(self._file, [buffer], (turn * self._bytes) % room // BLOCK * BLOCK)
            turn += 1
            pixels = np.frombuffer(buffer, dtype=np.uint8, count=PIXELS)
            yield torch.from_numpy(pixels.astype(np.float32).reshape(IMAGE) / 255)


class HeavyDecode(IterableDataset):
    """Each image costs tens of milliseconds of a core."""

    def __iter__(self) -> Iterator[Any]:
        numbers = np.random.default_rng(get_worker_info().id)
        while True:
            noise = numbers.random(2 * PIXELS)
            noise.sort()
            yield torch.from_numpy(noise[:PIXELS].astype(np.float32).reshape(IMAGE))


def send_paced(address: tuple[str, int], bytes_per_second: float) -> None:
    """Send at a steady pace to whoever listens there, until nobody does."""
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


def received(listener: socket.socket, batch: int) -> Iterator[Any]:
    """Batches of 4-byte pixels as they arrive from the first one who connects."""
    connection, _ = listener.accept()
    images = pinned(torch.empty(batch, *IMAGE))
    room = memoryview(images.numpy()).cast("B")
    while True:
        filled = 0
        while filled < len(room):
            filled += connection.recv_into(room[filled:])
        yield images
