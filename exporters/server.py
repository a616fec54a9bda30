"""The HTTP server: aiohttp's runner, with sockets that limit the connections of each client."""

import asyncio
import gc
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from typing import TYPE_CHECKING, Any

from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from agent.ranges import is_loopback
from exporters.access_control import client_of
from exporters.http import SOFTWARE

if TYPE_CHECKING:  # not loaded unless TLS is used
    from ssl import SSLContext

OF_ONE_CLIENT, OF_ALL = 64, 256
"""Maximum number of connections per client and in total. Any further connection closes the oldest
connection of its client or of the client with the most connections. A client that does not read a
response may occupy half a megabyte per connection. The agent may open 1,024 files, and every local
user can use all addresses in 127.0.0.0/8."""

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER value for which the kernel discards unsent data."""


class Listener(socket.socket):
    """A listening socket that limits connections, as neither asyncio nor aiohttp does."""

    def __init__(self, listening: socket.socket) -> None:
        """Replace `listening`."""
        super().__init__(fileno=listening.detach())
        self._open: dict[socket.socket, str] = {}  # clients by connection, oldest first
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        channel, address = super().accept()
        self._accepted += 1
        if self._accepted % OF_ALL == 0:  # a failed TLS handshake leaks a 60 kB cycle
            gc.collect()
        client = client_of(address[0])
        self._open = {one: who for one, who in self._open.items() if one.fileno() != -1}
        counts = Counter(self._open.values())
        full = counts[client] >= OF_ONE_CLIENT
        if full or len(self._open) >= OF_ALL:
            most = client if full else max(counts, key=counts.__getitem__)
            oldest = next(one for one, who in self._open.items() if who == most)
            del self._open[oldest]
            _cut(oldest)
        self._open[channel] = client
        return channel, address

    def cut(self) -> None:
        """Close all connections."""
        for channel in self._open:
            _cut(channel)


def _cut(channel: socket.socket) -> None:
    """Shut down a connection in any state. The transport then closes the socket."""
    with suppress(OSError):
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        channel.shutdown(socket.SHUT_RDWR)


OF_THE_OTHER_END = (HttpProcessingError, RequestPayloadError, ConnectionError)

REQUESTS = logging.getLogger("exporters.requests")
REQUESTS.addFilter(lambda record: not isinstance((record.exc_info or (0, 0))[1], OF_THE_OTHER_END))


SEND_BUFFER = 64 * 1024  # bytes per connection; the kernel's default is ten times larger
BACKLOG = 128
SHUTDOWN_TIMEOUT = 0.25  # s for requests in progress to complete on shutdown
TLS_BUFFER = 16 * 1024  # bytes per connection; asyncio's default is 16 times larger
LINGER = 1.0  # s for which the rest of a rejected request is read
KEEP_ALIVE = 75.0  # s, longer than any usual scrape interval

NO_SUCH_FAMILY = frozenset({EAFNOSUPPORT, EADDRNOTAVAIL})

# aiohttp itself responds to malformed requests, and would reveal the version of Python.
web_response.SERVER_SOFTWARE = SOFTWARE  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False)
class Server:
    """A server that is listening; `cleanup` stops it."""

    runner: web.AppRunner
    listeners: Sequence[Listener]

    @property
    def addresses(self) -> list[Any]:
        """Addresses on which the server listens, as returned by the kernel: (host, port, ...). All
        of them have the same port."""
        return self.runner.addresses

    @property
    def port(self) -> int:
        return int(self.addresses[0][1])

    @property
    def is_local(self) -> bool:
        return all(is_loopback(address[0]) for address in self.addresses)

    async def cleanup(self) -> None:
        """Shut down within a second, even if clients do not read their responses."""
        loop = asyncio.get_running_loop()
        cuts = [loop.call_later(SHUTDOWN_TIMEOUT, one.cut) for one in self.listeners]
        await self.runner.cleanup()
        for cut in cuts:
            cut.cancel()


async def serve(
    app: web.Application, host: str, port: int, *, context: "SSLContext | None" = None
) -> Server:
    """Listen on all addresses of the host, with the same port. The caller stops the server with
    `cleanup()`. Raise OSError if listening fails."""
    if context:
        from asyncio.sslproto import SSLProtocol

        SSLProtocol.max_size = TLS_BUFFER
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=REQUESTS,
        auto_decompress=False,  # no route reads a body
        keepalive_timeout=KEEP_ALIVE,
        lingering_time=LINGER,
        shutdown_timeout=SHUTDOWN_TIMEOUT,
    )
    await runner.setup()
    try:
        listeners = [*map(Listener, await _bound(host, port))]
        for listener in listeners:
            await web.SockSite(runner, listener, ssl_context=context, backlog=BACKLOG).start()
    except OSError:
        await runner.cleanup()
        raise
    return Server(runner, listeners)


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Return a bound socket for each address of the host. "" stands for all IPv4 and IPv6
    addresses. All sockets have the same port. For port 0, a free port is chosen. If this machine
    lacks an address family, that family is skipped, unless no other family is available."""
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
            failure = OSError(error.errno, os.strerror(error.errno or 0))  # omits the address
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
