"""One-GPU loads of the fourth blind trial whose data comes late from a server.

The server is no child of the trainer.
"""

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tests.hardware.labelled_loads.blind_input import words
from tests.hardware.labelled_loads.fourth_input import LENGTH, Fitted
from tests.hardware.labelled_loads.fourth_networks import die_with_parent
from tests.hardware.labelled_loads.labels import NETWORK
from tests.hardware.labelled_loads.third_networks import blank
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, pinned

AT_ONCE = 256 << 10
"""Bytes that a server sends at once."""


def _beside(train: Callable[[], None]) -> Any:
    """The trainer, in a process of its own that does not outlive this one."""

    def run() -> None:
        die_with_parent()
        train()
        os._exit(0)  # threads that wait for data do not end

    trainer = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    trainer.start()
    return trainer


async def _give(listener: socket.socket, trainer: Any) -> None:
    """Serve any part of an object over HTTP, all together at the pace that is asked for."""
    web = importlib.import_module("aiohttp.web")
    content = os.urandom(8 << 20)
    free = 0.0

    async def give(request: Any) -> Any:
        nonlocal free
        length, pace = int(request.query["length"]), float(request.query["pace"])
        response = web.StreamResponse(headers={"Content-Length": str(length)})
        await response.prepare(request)
        for at in range(0, length, AT_ONCE):
            piece = content[at % len(content) :][: min(AT_ONCE, length - at)]
            free = max(time.monotonic() - 0.01, free) + len(piece) / pace
            await asyncio.sleep(max(0.0, free - time.monotonic()))
            await response.write(piece)
        return response

    application = web.Application()
    application.router.add_get("/object", give)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    await asyncio.to_thread(trainer.join)


def _download(port: int, first: Any, pace: float, parts: int, made: queue.Queue[Any]) -> None:
    """A thread with a loop of its own: the parts of each batch at the same time."""
    aiohttp = importlib.import_module("aiohttp")

    async def part(session: Any, room: Any) -> None:
        asked = {"length": str(len(room)), "pace": str(pace)}
        async with session.get(f"http://127.0.0.1:{port}/object", params=asked) as response:
            at = 0
            async for piece in response.content.iter_any():
                room[at : at + len(piece)] = piece
                at += len(piece)

    async def download() -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                images = torch.empty_like(first, pin_memory=DEVICE == "cuda")
                room = memoryview(images.numpy()).cast("B")
                each = -(-len(room) // parts)
                pieces = (room[at : at + each] for at in range(0, len(room), each))
                await asyncio.gather(*(part(session, piece) for piece in pieces))
                made.put(images)

    asyncio.run(download())


def ranged_downloads(seconds: float, *, batch: int, share: float, parts: int) -> None:
    """An asynchronous client gets each batch in several parts from a bucket of limited pace."""

    def train() -> None:
        first = blank(batch)
        fitted = Fitted(first)
        pace = first.numel() / fitted.period(share)
        made: queue.Queue[Any] = queue.Queue(1)
        asked = (listener.getsockname()[1], first, pace, parts, made)
        threading.Thread(target=_download, args=asked, daemon=True).start()
        fitted.learn(iter(made.get, None), seconds, NETWORK)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(_give(listener, _beside(train)))


def _look_up(listener: socket.socket, delay: float) -> None:
    """Answer each key after a delay (s)."""
    with contextlib.suppress(OSError):  # the trainer has gone
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        value = os.urandom(LENGTH * 8)
        while connection.recv(8, socket.MSG_WAITALL):
            time.sleep(delay)
            connection.sendall(value)


def remote_lookups(seconds: float, *, batch: int, share: float, delay: float) -> None:
    """The main thread asks a far store for one key after the other before each step.

    Few bytes come; each takes its time.
    """

    def train() -> None:
        connection = socket.create_connection(listener.getsockname())
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sequences = sized(batch, 2)
        tokens = pinned(torch.zeros(sequences, LENGTH, dtype=torch.int64))
        value = bytearray(LENGTH * 8)

        def ask(place: int) -> None:
            connection.sendall(struct.pack("Q", place))
            connection.recv_into(value, len(value), socket.MSG_WAITALL)
            found = np.frombuffer(value, np.uint64) % np.uint64(words())
            tokens[place % sequences] = torch.from_numpy(found.astype(np.int64))

        fitted = Fitted(tokens)
        each = length_of(lambda: ask(0), sized(0.4, 0.05))
        count = max(1, round(share * fitted.period(share) / each))

        def batches() -> Iterator[Any]:
            while True:
                for place in range(count):
                    ask(place)
                yield tokens

        fitted.learn(batches(), seconds, NETWORK, wait=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        trainer = _beside(train)
        threading.Thread(target=_look_up, args=(listener, delay), daemon=True).start()
        trainer.join()
