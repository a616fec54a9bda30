"""Open connections, bounded in number and in time.

asyncio and aiohttp bound neither how many connections there are nor how long a client may take to
send its request or to take its answer. So the listening socket asks here whom it may hand over, and
who is late is cut off.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

MOST = 128  # a client that does not take its answer may hold half a megabyte
FIRST_REQUEST = 10.0  # s from the connection to whole headers, the TLS handshake included
NEXT_REQUEST = 90.0  # s from one request to whole headers of the next: HTTP's keep-alive ends first

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: what was not sent by then is thrown away, in the kernel too."""


@dataclass(slots=True, eq=False)
class Connection:
    """One open connection. Its socket is asked and not its transport: one that is closing, but
    whose client does not take the rest, still holds memory."""

    channel: socket.socket
    since: float = inf  # loop time at which it came or was answered; infinite while a handler works
    deadline: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        return self.channel.fileno() == -1

    def expect(self, seconds: float) -> None:
        """Cut it off unless whole headers have come by then."""
        loop = asyncio.get_running_loop()
        self.since, self.deadline = loop.time(), loop.call_later(seconds, self.cut)

    def cancel_deadline(self) -> None:
        self.since = inf
        if self.deadline is not None:
            self.deadline.cancel()

    def cut(self) -> None:
        """End it whatever state it is in: the transport finds its socket shut, and closes."""
        with suppress(OSError):
            self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            self.channel.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True, eq=False)
class Connections:
    """Every open connection, by its file descriptor."""

    most: int = MOST
    first: float = FIRST_REQUEST
    next: float = NEXT_REQUEST
    _open: dict[int, Connection] = field(default_factory=dict)

    def admit(self, channel: socket.socket) -> bool:
        """Take a connection that was made just now, in place of the one that is idle longest where
        there are too many; False, and closed, where all of those are worked for."""
        self._forget()
        if len(self._open) >= self.most:
            idle = min(self._open.values(), key=lambda one: one.since)
            if idle.since == inf:
                channel.close()
                return False
            self._open.pop(idle.channel.fileno()).cancel_deadline()
            idle.cut()
        self._open[channel.fileno()] = connection = Connection(channel)
        connection.expect(self.first)
        return True

    def count(self) -> int:
        self._forget()
        return len(self._open)

    @web.middleware
    async def timed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A middleware before all others: no one is late while a request is worked on."""
        channel = request.get_extra_info("socket")
        connection = self._open.get(channel.fileno()) if channel is not None else None
        if connection is None:
            return await handler(request)  # it is gone already
        connection.cancel_deadline()
        try:
            return await handler(request)
        finally:
            connection.expect(self.next)

    def _forget(self) -> None:
        for number in [n for n, connection in self._open.items() if connection.is_over]:
            self._open.pop(number).cancel_deadline()


class Listener(socket.socket):
    """A listening socket that hands over whom `connections` admits."""

    def __init__(self, listening: socket.socket, connections: Connections) -> None:
        """Takes the place of `listening`."""
        super().__init__(fileno=listening.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """As ever; raises ConnectionAbortedError for who was turned away, which asyncio takes for
        a connection that was gone again."""
        channel, address = super().accept()
        if not self._connections.admit(channel):
            raise ConnectionAbortedError
        return channel, address
