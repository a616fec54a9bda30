"""A chat server at six loads, decoding in a CUDA graph and kernel by kernel; its clients are a
process of their own and ask over TCP, at random."""

import contextlib
import functools
import os
import queue
import random
import socket
import threading
import time

from tests.hardware.traced.load import SERVER, Load
from tests.hardware.traced.loads_fourth import begin
from tests.hardware.traced.loads_fourth_serving import ChatModel, ChatServer
from tests.hardware.traced.marks import Marks, join_cgroup

LOADS_OF_SERVERS = (0, 20, 40, 60, 80, 100)
"""Per cent of the requests a second that one answer after the other would allow."""

PROMPT, ANSWER, REQUEST = 192, 48, 256  # tokens, tokens, bytes


def _drop(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def _clients(listener: socket.socket) -> None:
    """Ask at the mean rate that the server names; its answers are read and dropped."""
    join_cgroup("", os.getpid())
    connection, _ = listener.accept()
    rate = float(connection.recv(64))
    threading.Thread(target=_drop, args=(connection,), daemon=True).start()
    at = time.monotonic()
    with contextlib.suppress(OSError):  # the server has ended
        while rate:
            at += random.expovariate(rate)
            time.sleep(max(0.0, at - time.monotonic()))
            connection.sendall(random.randbytes(REQUEST))


class Served(ChatServer):
    """Takes requests of bytes from a queue, which a thread fills from a connection."""

    def __init__(self, model: ChatModel, connection: socket.socket, length: int, answer: int):
        super().__init__(model, answer)
        self.arrived: queue.Queue[bytes] = queue.Queue(64)
        self._connection, self._length = connection, length

    def take(self, request: bytes) -> None:
        """Begin to answer it."""
        self.admit([byte % self.model.vocabulary for byte in request[: self._length]])

    def seconds_each(self) -> float:
        """Return the duration of one answer, alone; that of the sixth, since the first ones warm
        up."""
        took = 0.0
        for _ in range(6):
            since = time.monotonic()
            self.take(random.randbytes(REQUEST))
            while self.left:
                self.turn()
            took = time.monotonic() - since
        return took

    def receive(self) -> None:
        """Read requests until the connection ends."""
        while request := self._connection.recv(REQUEST, socket.MSG_WAITALL):
            self.arrived.put(request)

    def serve(self, marks: Marks) -> None:
        """Answer whatever arrives."""
        while marks.going():
            if not self.left:
                with marks.waits("requests"):
                    first = self.arrived.get()
                self.take(first)
            while len(self.left) < self.model.slots and not self.arrived.empty():
                self.take(self.arrived.get())
            for _ in range(self.turn()):
                self._connection.sendall(b"answered\n")
                marks.step()


def server(marks: Marks, percent: int, *, graph: bool) -> None:
    """Continuous batching in 16 slots; requests wait in the socket while all are taken."""
    listener = socket.create_server(("127.0.0.1", 0))
    if not os.fork():
        if not os.fork():  # a child of init, as clients are no part of a server
            _clients(listener)
        os._exit(0)
    os.wait()
    connection = socket.create_connection(listener.getsockname())
    import torch

    device, pick = begin()
    with torch.no_grad():
        model = ChatModel(device, pick)
        if not graph:
            model.decode = model._decode
        served = Served(model, connection, *pick((PROMPT, ANSWER), (8, 6)))
        rate = percent / 100 / served.seconds_each()
        threading.Thread(target=served.receive, daemon=True).start()
        connection.sendall(str(rate).encode())
        marks.steady()
        served.serve(marks)


LOADS = {
    f"server_{way}_{percent}": Load(
        functools.partial(server, percent=percent, graph=way == "graph"),
        regular=False,
        settles=SERVER,
        seconds=60.0,
    )
    for way in ("graph", "eager")
    for percent in LOADS_OF_SERVERS
}
