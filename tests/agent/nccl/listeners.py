"""Listeners that are not what they should be; each serves one connection after the other."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from agent.hardware.nccl import RasAddress

Behaviour = Callable[[socket.socket], None]


@contextmanager
def listening(behaviour: Behaviour) -> Iterator[RasAddress]:
    """A listener on a free port that treats every connection so, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.02)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    connection.settimeout(0.02)
                    with connection, suppress(OSError):
                        behaviour(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield RasAddress(*server.getsockname())
        over.set()
        thread.join()


def matched(connection: socket.socket) -> str:
    """The next command, waited for as long as the asker stays; nothing once it has gone."""
    line = b""
    while not line.endswith(b"\n"):
        with suppress(TimeoutError):
            piece = connection.recv(1)
            if not piece:
                return ""
            line += piece
    return line.decode().strip()


HANDSHAKE = (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n")


def answers(*replies: bytes) -> Behaviour:
    """One reply to each command in turn, then nothing."""

    def behaviour(connection: socket.socket) -> None:
        for reply in replies:
            matched(connection)
            connection.sendall(reply)

    return behaviour


def says_nothing(connection: socket.socket) -> None:
    """A stopped process, or a stuck thread: takes commands in until the asker goes."""
    while matched(connection):
        pass


def drip(connection: socket.socket) -> None:
    """Send a byte of an answer now and then, without end."""
    answers(*HANDSHAKE, b"")(connection)
    while True:
        connection.sendall(b"N")
        with suppress(TimeoutError):
            if not connection.recv(1):
                return


def endless(connection: socket.socket) -> None:
    answers(*HANDSHAKE, b"")(connection)
    while True:
        with suppress(TimeoutError):
            connection.sendall(b"x" * 65536)


MISBEHAVIOUR: dict[str, Behaviour] = {
    "closes": answers(),
    "a web server": answers(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "noise": answers(bytes(range(256)) * 4),
    "endless": endless,
    "dies in its answer": answers(*HANDSHAKE, b'{"nccl_version": "2.30.4", "communi'),
    "refuses the status": answers(*HANDSHAKE, b"ERROR: Unknown command VERBOSE STATUS\n"),
    "a strange reply": answers(HANDSHAKE[0], b"WHAT?\n"),
    "another service's words": answers(b"password: hunter2\n"),
}
