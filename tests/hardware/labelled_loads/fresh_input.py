"""One-GPU loads of the second blind trial whose data comes late: no rule was made with them."""

import functools
import itertools
import multiprocessing
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.hardware import feeds
from tests.hardware.labelled_loads.blind_input import (
    PREPARED,
    LoadedTokens,
    language_model,
    token_shape,
    train_as_they_come,
    words,
)
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.feeding import READERS, decode, train_on
from tests.hardware.labelled_loads.labels import BUSY, CPU, DISK, NETWORK, PCIE
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, IMAGE, pinned


def _made_by_threads(make: Callable[[int], Iterator[Any]], threads: int) -> Iterator[Any]:
    """Batches of several threads of this process; two wait at most."""
    made: queue.Queue[Any] = queue.Queue(2)

    def work(number: int) -> None:
        for batch in make(number):
            made.put(batch)

    for number in range(threads):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    return iter(made.get, None)


def spectra_threads(seconds: float, *, batch: int, cpu_seconds: float, threads: int) -> None:
    """Threads turn sound into tokens by NumPy, which lets the others run meanwhile.

    What they take from the thread that launches counts as theirs: a step is measured before them.
    """
    tokens = LoadedTokens(batch)
    trainer = Trainer(language_model(), tokens.loss)
    alone = length_of(trainer.step, sized(1.5, 0.1), at_once=4)

    def make(number: int) -> Iterator[Any]:
        numbers = np.random.default_rng(number)
        sound = numbers.standard_normal(1 << 19)
        while True:
            end = time.thread_time() + cpu_seconds
            while time.thread_time() < end:
                loudness = np.sort(np.abs(sound * numbers.random()))
            found = (np.resize(loudness, token_shape(batch)) * 1e4).astype(np.int64) % words()
            yield torch.from_numpy(found)

    train_as_they_come(
        _made_by_threads(make, threads),
        tokens,
        trainer,
        seconds,
        cause=CPU,
        levels=[(CPU, alone, None)],
    )


class UnequallyLong(IterableDataset):
    """Batches that cost a core so many seconds in the mean, a few of them many times that."""

    def __init__(self, batch: int, cpu_seconds: float) -> None:
        self._batch, self._cpu_seconds = batch, cpu_seconds

    def __iter__(self) -> Iterator[Any]:
        numbers = np.random.default_rng(get_worker_info().id)
        made = torch.randint(0, 255, (sized(self._batch, 2), *IMAGE), dtype=torch.uint8)
        while True:
            decode(self._cpu_seconds * min(8.0, numbers.lognormal(-0.5, 1.0)))
            yield made.clone()


def heavy_tailed(seconds: float, *, batch: int, cpu_seconds: float, workers: int) -> None:
    """Worker processes that are enough in the mean; all wait for the one whose turn it is."""
    loader = DataLoader(
        UnequallyLong(batch, cpu_seconds),
        batch_size=None,
        num_workers=workers,
        pin_memory=DEVICE == "cuda",
        multiprocessing_context="fork",
    )
    train_on(loader, seconds, CPU)


def direct_threads(
    seconds: float, *, batch: int, bytes_per_image: int, threads: int, file_bytes: int
) -> None:
    """Threads of the training process read somewhere in a file, past the page cache."""
    file = feeds.nameless_file(sized(file_bytes, 64 << 20))

    def make(number: int) -> Iterator[Any]:
        numbers = np.random.default_rng(number)
        read, _ = READERS["direct"](file, bytes_per_image)
        places = sized(file_bytes, 64 << 20) // bytes_per_image
        made = torch.randint(0, 255, (sized(batch, 2), *IMAGE), dtype=torch.uint8)
        first = made.view(len(made), -1)
        while True:
            for image in range(len(made)):
                first[image, 0] = read(int(numbers.integers(places)) * bytes_per_image)[0]
            yield pinned(made.clone())

    train_on(_made_by_threads(make, threads), seconds, DISK)


def _received(listener: socket.socket, batch: int) -> Iterator[Any]:
    """Batches as they arrive over one connection, record by record."""
    connection, _ = listener.accept()
    shape = (sized(batch, 2), *IMAGE)
    while True:
        made = pinned(torch.empty(shape, dtype=torch.uint8))
        room = memoryview(made.numpy()).cast("B")
        filled = 0
        while filled < len(room):
            filled += connection.recv_into(room[filled:])
        yield made


def streamed_records(
    seconds: float, *, batch: int, bytes_per_second: float, connections: int
) -> None:
    """Threads of the trainer receive, each over its own connection; all senders share the pace."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        trainer = multiprocessing.get_context("fork").Process(
            target=lambda: train_on(
                _made_by_threads(lambda _: _received(listener, batch), connections),
                seconds,
                NETWORK,
            )
        )
        trainer.start()
        send = functools.partial(feeds.send_paced, listener.getsockname())
        for _ in range(connections):
            pace = bytes_per_second / connections
            threading.Thread(target=send, args=(pace,), daemon=True).start()
        trainer.join()


def _augmented(images: Any, numbers: Any, cpu_seconds: float) -> Any:
    """Turned, shifted and brightened on one core for so long (s)."""
    end = time.thread_time() + cpu_seconds
    seen = images
    while time.thread_time() < end:
        seen = np.roll(images[:, ::-1], int(numbers.integers(100)), axis=1)
        seen = np.clip(seen * numbers.uniform(0.9, 1.1), 0.0, 1.0)
    return seen.astype(np.float32)


def jax_augmenting(
    seconds: float, *, batch: int, columns: int, layers: int, width: int, cpu_seconds: float
) -> None:
    """JAX; the main thread makes each batch by NumPy when the step before is done."""
    import jax
    import jax.numpy as jnp

    batch, columns, layers, width = sized((batch, columns, layers, width), (16, 8, 2, 32))
    keys = jax.random.split(jax.random.key(0), 2)
    enter = jax.random.normal(keys[0], (columns, width), jnp.bfloat16)
    weights = jax.random.normal(keys[1], (layers, 2, width, width), jnp.bfloat16) * width**-0.5

    def layer(values: Any, pair: Any) -> tuple[Any, None]:
        return values + jax.nn.gelu(values @ pair[0]) @ pair[1], None

    def loss(weights: Any, seen: Any) -> Any:
        told, _ = jax.lax.scan(layer, seen.astype(jnp.bfloat16) @ enter, weights)
        return jnp.mean(jnp.square(told.astype(jnp.float32)))

    step = jax.jit(lambda weights, seen: weights - 1e-6 * jax.grad(loss)(weights, seen))
    numbers = np.random.default_rng(0)
    images = numbers.random((batch, columns), np.float32)
    clock = None
    for turn in itertools.count():
        made = _augmented(images, numbers, cpu_seconds)
        if clock is not None:
            clock.mark(CPU)
        seen = jax.block_until_ready(jax.device_put(made))
        if clock is not None:
            clock.mark(PCIE)
        weights = jax.block_until_ready(step(weights, seen))
        if clock is not None:
            clock.mark(BUSY)
            clock.step()
            if not clock.going():
                return
        elif turn >= PREPARED:
            clock = ShareClock(seconds, on_gpu=False)
            clock.begin()
