"""A one-GPU load of the fifth blind trial that waits for a network: no rule knows it."""

import contextlib
import multiprocessing
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.hardware.labelled_loads.fifth_disk import in_rounds
from tests.hardware.labelled_loads.fourth_networks import die_with_parent
from tests.hardware.labelled_loads.labels import BUSY, NETWORK, PCIE
from tests.hardware.labelled_loads.tasks import Trainer, language
from tests.hardware.labelled_loads.third_alone import Mark
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import pinned, synchronize

AT_ONCE = 256 << 10
"""Bytes sent at once."""


def _beside(train: Callable[[], None]) -> Any:
    """The trainer, in a process of its own that does not outlive this one."""

    def run() -> None:
        die_with_parent()
        train()

    trainer = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    trainer.start()
    return trainer


def _aggregate(connection: socket.socket) -> None:
    """Who averages what all have learnt: takes a little from each and gives the mean, at a pace."""
    told, given, pace = struct.unpack("QQd", connection.recv(24, socket.MSG_WAITALL))
    numbers = np.random.default_rng(0).standard_normal(1 << 18, np.float32) * 0.02
    mean, taken = memoryview(numbers.tobytes()), bytearray(AT_ONCE)
    while True:
        due = time.monotonic()
        for at in range(0, told + given, AT_ONCE):
            if at < told:
                part = min(AT_ONCE, told - at)
                if connection.recv_into(taken, part, socket.MSG_WAITALL) < part:
                    return
            else:
                part = min(AT_ONCE, told + given - at)
                connection.sendall(mean[:part])
            due += part / pace
            time.sleep(max(0.0, due - time.monotonic()))


def _serve(listener: socket.socket, trainer: Any) -> None:
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError, struct.error):  # the trainer has gone
        _aggregate(connection)
    trainer.join()


def _sizes(both: float, kept: int, most: int) -> tuple[int, int]:
    """Bytes that are sent and that come in a round, about so many together."""
    told = max(1, round(both / (kept + 1) / AT_ONCE)) * AT_ONCE
    return told, min(told * kept, most // AT_ONCE * AT_ONCE)


def federated_rounds(
    seconds: float, *, batch: int, steps: int, share: float, pace: float, kept: int
) -> None:
    """Federated learning: after some steps of its own it sends a little of what it has learnt to
    one who averages, and waits for what all have learnt, over one connection of limited pace.

    Of `kept` parts that come one is sent. The other end is no child of the trainer.
    """

    pace = sized(pace, 1e6)

    def train() -> None:
        trainer = Trainer(*language(batch))
        lasting = steps * length_of(trainer.step, sized(1.0, 0.1), at_once=2)
        table = trainer.network.words.weight.detach().view(-1)
        told, given = _sizes(lasting * share / (1 - share) * pace, kept, 4 * len(table))
        part = table[: given // 4]
        exchanged = pinned(part.cpu())
        room = memoryview(exchanged.numpy()).cast("B")
        connection = socket.create_connection(listener.getsockname())
        connection.sendall(struct.pack("QQd", told, given, pace))

        def step(mark: Mark) -> None:
            for _ in range(steps):
                trainer.step()
            mark(BUSY)
            exchanged.copy_(part, non_blocking=True)
            mark(PCIE)
            synchronize()
            connection.sendall(room[:told])
            connection.recv_into(room, given, socket.MSG_WAITALL)
            mark(NETWORK)
            part.copy_(exchanged, non_blocking=True)
            mark(PCIE)

        in_rounds(seconds, step)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        _serve(listener, _beside(train))
