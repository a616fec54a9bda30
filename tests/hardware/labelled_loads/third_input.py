"""One-GPU loads of the third blind trial that wait for data or requests: no rule knows them."""

import contextlib
import fcntl
import itertools
import mmap
import multiprocessing
import os
import queue
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.hardware.labelled_loads.blind_input import PREPARED, directory, small_file
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, CPU, DISK, NETWORK, PCIE
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.third_networks import Mixer, blank, recognition
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, IMAGE, pinned, synchronize

BLOCK = 4096
PIPE_BYTES = 1 << 20
PIECE = 128 << 10
"""Bytes read from a pipe at once."""

SENT_EVERY = 0.02
"""Seconds between two pieces of a batch that is sent."""

WRITTEN = 16 << 20
"""Bytes written at once."""


class Recognition:
    """A network that learns from images of bytes."""

    def __init__(self, batch: int) -> None:
        self._seen = blank(batch).to(DEVICE)
        with torch.device(DEVICE):
            network = Mixer()
        self.trainer = Trainer(network, recognition(self._seen))
        self.step_seconds = length_of(self.trainer.step, sized(1.2, 0.1), at_once=4)
        """What a step takes whose data is there."""

    def period(self, share: float) -> float:
        """Seconds from batch to batch where the GPU waits for so large a share of them."""
        return self.step_seconds / (1 - share)

    def see(self, frames: Any) -> None:
        """Frames of floats on the GPU, as often as they fit into a batch."""
        self._seen.view(-1, *frames.shape).copy_(frames * 255)

    def train(
        self, batches: Iterable[Any], seconds: float, cause: str, *, wait: bool = False
    ) -> None:
        """One step a batch; what the GPU waits for a batch is the cause's.

        `wait`: the next batch is asked for only when the GPU is done.
        """
        clock = None
        for place, batch in enumerate(batches):
            if clock is not None:
                clock.mark(cause)
            self._seen.copy_(batch, non_blocking=True)
            self.trainer.step()
            if wait:
                synchronize()
            if clock is not None:
                clock.mark(BUSY)
                clock.step()
                if not clock.going():
                    return
            elif place >= PREPARED:
                clock = ShareClock(seconds)
                clock.begin()


class Loader:
    """Batches of worker processes, which are begun before the GPU is asked anything.

    A batch takes so large an `amount` of their work as makes it come in time.
    """

    def __init__(
        self, make: Callable[[Any], Any], workers: int, amount: float, start: str = "fork"
    ) -> None:
        """`make` the data set from the shared `amount` (at first so much)."""
        self._amount = multiprocessing.get_context(start).Value("d", amount)
        self._waiting = 2 * workers + 2  # made ahead, or on their way
        self.batches = iter(
            DataLoader(
                make(self._amount),
                batch_size=None,
                num_workers=workers,
                pin_memory=DEVICE == "cuda",
                multiprocessing_context=start,
            )
        )

    def come_every(self, seconds: float, least: float = 2.0) -> None:
        """Find the amount with which a batch comes every so many seconds."""
        self._leave()
        since, done = time.monotonic(), 0
        while (passed := time.monotonic() - since) < sized(least, 0.2) or done < 2:
            next(self.batches)
            done += 1
        self._amount.value *= seconds * done / passed
        self._leave()

    def _leave(self) -> None:
        for _ in range(self._waiting):
            next(self.batches)


class Blurred(IterableDataset):
    """Batches that cost a core `amount` seconds in the mean, and each another time."""

    def __init__(self, batch: int, amount: Any) -> None:
        self._batch, self._amount = batch, amount

    def __iter__(self) -> Iterator[Any]:
        numbers = np.random.default_rng(get_worker_info().id)
        made = blank(self._batch)
        image = made[0].numpy().astype(np.float32)
        while True:
            end = time.thread_time() + self._amount.value * numbers.uniform(0.4, 1.6)
            while time.thread_time() < end:
                sums = np.cumsum(image, axis=2)
                made[0, :, :, 8:] = torch.from_numpy((sums[..., 8:] - sums[..., :-8]) / 8)
            yield made.clone()


def few_workers(seconds: float, *, batch: int, share: float, workers: int) -> None:
    """Too few worker processes blur images; the GPU waits for so large a share of the time."""
    loader = Loader(lambda amount: Blurred(batch, amount), workers, sized(0.3, 0.02))
    recognition = Recognition(batch)
    loader.come_every(recognition.period(share))
    recognition.train(loader.batches, seconds, CPU)


class StoredPictures(IterableDataset):
    """Batches for which `amount` small files are read, each of which no cache holds."""

    def __init__(self, files: Sequence[int], batch: int, amount: Any) -> None:
        """`files` are open and have no names."""
        self._files, self._batch, self._amount = files, batch, amount

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        own = list(self._files[worker.id :: worker.num_workers])
        random.Random(worker.id).shuffle(own)
        turns = itertools.cycle(own)
        made = blank(self._batch)
        first = made.view(len(made), -1)
        while True:
            for place in range(max(1, round(self._amount.value))):
                first[place % len(made), 0] = _read_cold(next(turns))
            yield made.clone()


def _read_cold(file: int) -> int:
    """The first byte of a file, which is read as a whole and forgotten."""
    with open(f"/proc/self/fd/{file}", "rb", buffering=0) as opened:
        content = opened.read()
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return content[0]


def small_files(seconds: float, *, batch: int, share: float, files: int, workers: int) -> None:
    """Worker processes read small files of many sizes, cold, through the page cache."""
    files = sized(files, 64)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, files + 1024), most))
    numbers = random.Random(0)
    stored = [small_file(BLOCK * numbers.randint(16, 112)) for _ in range(files)]
    loader = Loader(lambda amount: StoredPictures(stored, batch, amount), workers, sized(200, 4))
    recognition = Recognition(batch)
    loader.come_every(recognition.period(share))
    recognition.train(loader.batches, seconds, DISK)


_UNPACK = """
import random, sys, zlib
symbols = bytes(random.Random(0).choices(range(48), k=1 << 20))
packed = zlib.compress(symbols, 6)
try:
    while True:
        sys.stdout.buffer.write(zlib.decompress(packed))
except BrokenPipeError:
    sys.stderr.close()
"""


class PipedPictures(IterableDataset):
    """Batches for which `amount` pieces are read from a command that unpacks them."""

    def __init__(self, batch: int, amount: Any) -> None:
        self._batch, self._amount = batch, amount

    def __iter__(self) -> Iterator[Any]:
        command = [sys.executable, "-I", "-S", "-c", _UNPACK]
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as unpacking:
            pipe: Any = unpacking.stdout
            with contextlib.suppress(PermissionError):  # others may have taken all that is allowed
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            made = blank(self._batch)
            room = memoryview(made.numpy()).cast("B")
            places = itertools.cycle(range(0, len(room) - PIECE, PIECE))
            while True:
                for place in itertools.islice(places, max(1, round(self._amount.value))):
                    filled = 0
                    while filled < PIECE:
                        filled += pipe.readinto(room[place + filled : place + PIECE])
                yield made.clone()


def unpacked_by_command(seconds: float, *, batch: int, share: float) -> None:
    """One loader reads what a command unpacks into a pipe, as `zcat` does."""
    loader = Loader(lambda amount: PipedPictures(batch, amount), 1, sized(160, 4))
    recognition = Recognition(batch)
    loader.come_every(recognition.period(share), least=1.0)
    recognition.train(loader.batches, seconds, CPU)


def _augmented(batch: int, cpu_seconds: float) -> Iterator[Any]:
    """As many images as so many seconds of a core allow: mirrored and brightened, in Python."""
    numbers = random.Random(0)
    made = pinned(blank(batch))
    room = memoryview(made.numpy()).cast("B")
    width, size = IMAGE[2], int(np.prod(IMAGE))
    stored = [numbers.randbytes(size) for _ in range(16)]
    places = itertools.cycle(range(0, len(room), size))
    while True:
        end = time.thread_time() + cpu_seconds
        while time.thread_time() < end:
            bright = numbers.uniform(0.6, 1.4)
            image = numbers.choice(stored).translate(
                bytes(min(255, int(v * bright)) for v in range(256))
            )
            rows = (image[at : at + width][::-1] for at in range(0, size, width))
            place = next(places)
            room[place : place + size] = b"".join(rows)
        yield made


def python_augmenting(seconds: float, *, batch: int, share: float) -> None:
    """The main process augments each batch in plain Python when the step before is done."""
    recognition = Recognition(batch)
    made = _augmented(batch, share * recognition.period(share))
    recognition.train(made, seconds, CPU, wait=True)


def _fed(address: tuple[str, int], batch: int, period: float) -> Iterator[Any]:
    """Batches from a feeder, which is asked for one every so often (s). Two wait at most."""
    made: queue.Queue[Any] = queue.Queue(2)

    def receive() -> None:
        with socket.create_connection(address) as connection:
            images = blank(batch)
            room = memoryview(images.numpy()).cast("B")
            connection.sendall(struct.pack("dQ", period, len(room)))
            while connection.recv_into(room, len(room), socket.MSG_WAITALL) == len(room):
                made.put(pinned(images.clone()))

    threading.Thread(target=receive, daemon=True).start()
    return iter(made.get, None)


def _feed(connection: socket.socket) -> None:
    """Batches at the asked pace in the mean; the link is now faster and now slower."""
    period, size = struct.unpack("dQ", connection.recv(16, socket.MSG_WAITALL))
    numbers = random.Random(0)
    batch = memoryview(numbers.randbytes(size))
    due = time.monotonic()
    while True:
        lasting = numbers.gammavariate(4, period / 4)
        pieces = max(1, round(lasting / SENT_EVERY))
        for piece in range(pieces):
            connection.sendall(batch[size * piece // pieces : size * (piece + 1) // pieces])
            due = max(due, time.monotonic() - lasting) + lasting / pieces
            time.sleep(max(0.0, due - time.monotonic()))


def jittery_feeder(seconds: float, *, batch: int, share: float) -> None:
    """A thread receives over TCP; the sender is no child of the trainer, and no steady one."""

    def train() -> None:
        recognition = Recognition(batch)
        fed = _fed(listener.getsockname(), batch, recognition.period(share))
        recognition.train(fed, seconds, NETWORK)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        trainer = multiprocessing.get_context("fork").Process(target=train)
        trainer.start()
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):  # the trainer has gone
            _feed(connection)
        trainer.join()


def pageable_clips(seconds: float, *, batch: int, share: float, frames: int, clips: int) -> None:
    """Clips of floats in pageable memory are copied one by one; the network sees some frames."""
    frames, clips = sized((frames, clips), (2, 4))
    recognition = Recognition(batch)
    stored = torch.rand(clips, frames, *IMAGE).unbind()
    arrived = torch.empty(frames, *IMAGE, device=DEVICE)
    turns = itertools.cycle(stored)
    each = length_of(lambda: arrived.copy_(next(turns)), sized(0.5, 0.05), at_once=4)
    count = max(1, round(share * recognition.period(share) / each))
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        for _ in range(count):
            arrived.copy_(next(turns))
        clock.mark(PCIE)
        recognition.see(arrived)
        recognition.trainer.step()
        clock.mark(BUSY)
        clock.step()


class DirectFile:
    """A file without a name, written past the page cache."""

    MOST = 2 << 30

    def __init__(self) -> None:
        path = Path(directory()) / f"labelled-{os.getpid()}.data"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        path.unlink()
        self._piece = mmap.mmap(-1, sized(WRITTEN, 1 << 20))  # aligned, as direct writes want it
        self._piece.write(os.urandom(len(self._piece)))

    def write(self, pieces: int) -> None:
        """So many pieces, from the beginning; they are on the disk afterwards."""
        for piece in range(pieces):
            os.pwrite(self._file, self._piece, piece * len(self._piece) % self.MOST)
        os.fsync(self._file)


def saves_every(seconds: float, *, batch: int, every: int, lasting: float) -> None:
    """After so many steps all parameters are saved, for about so long (s), by the main thread."""
    recognition, file = Recognition(batch), DirectFile()
    parameters = torch.cat([p.detach().flatten() for p in recognition.trainer.network.parameters()])
    kept = pinned(torch.empty_like(parameters, device="cpu"))
    file.write(sized(16, 1))
    each = length_of(lambda: file.write(sized(16, 1)), sized(1.0, 0.1)) / sized(16, 1)
    pieces = max(1, round(lasting / each))
    clock = ShareClock(seconds)
    clock.begin()
    for done in itertools.count(1):
        recognition.trainer.step()
        clock.mark(BUSY)
        clock.step()
        if done % every == 0:
            kept.copy_(parameters, non_blocking=True)
            clock.mark(PCIE)
            synchronize()
            file.write(pieces)
            clock.mark(DISK)
        if not clock.going():
            return
