"""The HTTP server: aiohttp's runner behind sockets that bound connections (see Connections)."""

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from ipaddress import ip_address
from math import inf
from time import monotonic
from typing import Any

from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from aiohttp.web import RequestPayloadError

from exporters.access_control import client_of
from exporters.http import SOFTWARE

MOST = 128  # a client that does not take its answer may hold half a megabyte
FIRST_REQUEST = 10.0  # s from the connection to whole headers, the TLS handshake included
NEXT_REQUEST = 90.0  # s from one request to whole headers of the next: HTTP's keep-alive ends first

OF_ONE_CLIENT = 64
"""Connections of one client: a further one takes the place of its own that is idle longest."""

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: what was not sent by then is thrown away, in the kernel too."""


@dataclass(slots=True, eq=False)
class Connection:
    """One open connection. Its socket is asked and not its transport: one that is closing, but
    whose client does not take the rest, still holds memory."""

    channel: socket.socket
    client: str = ""
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
    """Every open connection, by its file descriptor: asyncio and aiohttp bound neither their number
    nor how long a client may take, so the listening socket asks here whom it may hand over."""

    most: int = MOST
    of_one: int = OF_ONE_CLIENT
    first: float = FIRST_REQUEST
    next: float = NEXT_REQUEST
    _open: dict[int, Connection] = field(default_factory=dict)

    def admit(self, channel: socket.socket, address: str = "") -> bool:
        """Take a connection that was made just now, in place of the one that is idle longest where
        there are too many, of this client or of all; False, and closed, where all of those are
        worked for. Where all are too many, the client with most of them loses one."""
        self._forget()
        client = client_of(address)
        of = Counter(one.client for one in self._open.values())
        full = len(self._open) >= self.most
        loser = client if of[client] >= self.of_one or not full else max(of, key=lambda c: of[c])
        if full or of[client] >= self.of_one:
            held = (one for one in self._open.values() if one.client == loser)
            idle = min(held, key=lambda one: one.since)
            if idle.since == inf:
                channel.close()
                return False
            self._open.pop(idle.channel.fileno()).cancel_deadline()
            idle.cut()
        self._open[channel.fileno()] = connection = Connection(channel, client)
        connection.expect(self.first)
        return True

    def cut(self) -> None:
        """End all of them, whatever they are doing."""
        for connection in self._open.values():
            connection.cut()

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
        if not self._connections.admit(channel, address[0]):
            raise ConnectionAbortedError
        return channel, address


REPEAT_AFTER = 3600.0
"""Seconds after which the same bug is reported once more."""


OF_THE_OTHER_END = (HttpProcessingError, RequestPayloadError, ConnectionError)


class RequestErrorFilter(logging.Filter):
    """Lets through what is worth a line: a bug now and then, and no bad request, of which anybody
    can send a thousand a second."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._now = now
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return record.levelno > logging.INFO
        if isinstance(error, OF_THE_OTHER_END):
            return False
        place = type(error).__name__  # few, however often it is provoked
        now = self._now()
        if now - self._logged_at.get(place, -REPEAT_AFTER) < REPEAT_AFTER:
            return False
        self._logged_at[place] = now
        return True


LOG = logging.getLogger("exporters.requests")
LOG.addFilter(RequestErrorFilter())


SEND_BUFFER = 64 * 1024  # bytes of the kernel for each connection; left alone it takes ten times
BACKLOG = 128
SHUTDOWN_TIMEOUT = 0.25  # s that requests in flight get when the agent ends
LINGER = 1.0  # s for which the body of a request that was refused is still read
KEEP_ALIVE = 75.0  # s: longer than any usual scrape interval

NO_SUCH_FAMILY = frozenset({EAFNOSUPPORT, EADDRNOTAVAIL})

# What is no HTTP is answered by aiohttp itself, which would name Python and its version.
web_response.SERVER_SOFTWARE = SOFTWARE  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False)
class Server:
    """A listening server; `cleanup` ends it."""

    runner: web.AppRunner
    connections: Connections

    @property
    def addresses(self) -> list[Any]:
        """Addresses on which it listens, as the kernel reports: (host, port, ...); the port is the
        same."""
        return self.runner.addresses

    @property
    def port(self) -> int:
        return int(self.addresses[0][1])

    @property
    def is_local(self) -> bool:
        return all(ip_address(address[0]).is_loopback for address in self.addresses)

    async def cleanup(self) -> None:
        """End within a second, also if a client does not take its answer."""
        cut = asyncio.get_running_loop().call_later(SHUTDOWN_TIMEOUT, self.connections.cut)
        await self.runner.cleanup()
        cut.cancel()


async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    context: ssl.SSLContext | None = None,
    connections: Connections | None = None,
) -> Server:
    """Listen on every address of the host, at one port; the caller ends it with `cleanup()`.
    Raises OSError where it cannot listen."""
    connections = connections or Connections()
    app.middlewares.insert(0, connections.timed)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=LOG,
        auto_decompress=False,  # no one reads a body
        keepalive_timeout=KEEP_ALIVE,
        lingering_time=LINGER,
        shutdown_timeout=SHUTDOWN_TIMEOUT,
    )
    await runner.setup()
    try:
        for one in await _bound(host, port):
            listener = Listener(one, connections)
            await web.SockSite(runner, listener, ssl_context=context, backlog=BACKLOG).start()
    except OSError:
        await runner.cleanup()
        raise
    return Server(runner, connections)


async def _bound(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host, "" for every address of IPv4 and of IPv6, all with one
    port; port 0 takes a free one. A family that this machine has not is left out, as long as one is
    left."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    opened: list[socket.socket] = []
    failure = OSError()
    for family, (address, asked, *rest) in dict.fromkeys((f, where) for f, *_, where in found):
        same = opened[0].getsockname()[1] if opened else asked
        try:
            one = socket.create_server((address, same, *rest), family=family, backlog=BACKLOG)
        except OSError as error:
            failure = OSError(error.errno, os.strerror(error.errno or 0))  # without the address
            if error.errno in NO_SUCH_FAMILY:
                continue
            for other in opened:
                other.close()
            raise failure from error
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        opened.append(one)
    if not opened:
        raise failure
    return opened
