"""Inference servers on one GPU: what they wait for is requests, and nothing is lacking."""

import contextlib
import multiprocessing
import random
import select
import socket
import time

import torch

from tests.hardware.device import DEVICE, synchronize
from tests.hardware.labelled_loads import tasks
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, UNKNOWN

POLL_EVERY = 0.5
"""Seconds after which the server looks up although no one asked."""


def server(seconds: float, *, batch: int, passes: int, pause: float) -> None:
    """Requests arrive after pauses (s, mean; exponential) and take 1 to 2 `passes` passes each.

    No pause: none ever arrives.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listener, seconds, batch, passes)
        )
        serving.start()
        with socket.create_connection(listener.getsockname()) as connection:
            numbers = random.Random(0)
            with contextlib.suppress(OSError):  # the server has gone
                while pause and serving.is_alive():
                    time.sleep(numbers.expovariate(1 / pause))
                    connection.sendall(b"?")
            serving.join()


def _serve(listener: socket.socket, seconds: float, batch: int, passes: int) -> None:
    network, loss = tasks.language(batch)
    connection, _ = listener.accept()
    numbers = random.Random(1)

    def answer(times: int) -> None:
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            for _ in range(times):
                loss(network)
        synchronize()

    answer(passes)
    while select.select([connection], [], [], 0)[0]:
        connection.recv(4096)  # who asked during the start has gone
    clock = ShareClock(seconds)
    clock.begin()
    while clock.going():
        asked = select.select([connection], [], [], POLL_EVERY)[0]
        clock.mark(UNKNOWN)
        if asked:
            connection.recv(1)
            answer(numbers.randint(passes, 2 * passes))
            clock.mark(BUSY)
        clock.report()
