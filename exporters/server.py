"""The HTTP server: aiohttp's runner behind sockets that bound the connections of a client."""

import asyncio
import gc
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from aiohttp.web import RequestPayloadError

from exporters.access_control import client_of
from exporters.http import SOFTWARE

if TYPE_CHECKING:  # an agent without TLS does not load it
    from ssl import SSLContext

OF_ONE_CLIENT, OF_ALL = 64, 256
"""Connections of one client, and of all: a further connection ends the oldest of its client, or of
the client that has most; an idle one if there is any. A client that does not take an answer may
hold half a megabyte for each. The agent may open 1,024 files, and every local user has all of
127.0.0.0/8."""

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: the kernel discards the rest of an answer."""


class Listener(socket.socket):
    """A listening socket that bounds connections: asyncio and aiohttp bound none."""

    def __init__(self, listening: socket.socket, working: Set[int]) -> None:
        """Takes the place of `listening`; `working` are descriptors whose request is worked on."""
        super().__init__(fileno=listening.detach())
        self._working = working
        self._open: dict[socket.socket, str] = {}  # the client of each, the oldest first
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        channel, address = super().accept()
        self._accepted += 1
        if self._accepted % OF_ALL == 0:  # a TLS handshake that fails leaves 60 kB in a cycle
            gc.collect()
        client = client_of(address[0])
        self._open = {one: who for one, who in self._open.items() if one.fileno() != -1}
        before, counts = list(self._open.items()), Counter(self._open.values())
        self._open[channel] = client
        full = counts[client] >= OF_ONE_CLIENT
        if full or len(before) >= OF_ALL:
            most = client if full else max(counts, key=counts.__getitem__)
            own = [one for one, who in before if who == most]
            idle = next((one for one in own if one.fileno() not in self._working), own[0])
            del self._open[idle]
            _cut(idle)
        return channel, address

    def cut(self) -> None:
        """End all connections."""
        for channel in self._open:
            _cut(channel)


def _cut(channel: socket.socket) -> None:
    """End a connection in any state: its transport finds the socket shut, and closes."""
    with suppress(OSError):
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        channel.shutdown(socket.SHUT_RDWR)


OF_THE_OTHER_END = (HttpProcessingError, RequestPayloadError, ConnectionError)

REQUESTS = logging.getLogger("exporters.requests")
REQUESTS.addFilter(lambda record: not isinstance((record.exc_info or (0, 0))[1], OF_THE_OTHER_END))


SEND_BUFFER = 64 * 1024  # bytes of the kernel for each connection; left alone it takes ten times
BACKLOG = 128
SHUTDOWN_TIMEOUT = 0.25  # s that requests in flight get when the agent ends
TLS_BUFFER = 16 * 1024  # bytes of each connection; requests are short, and asyncio's is 16 times it
LINGER = 1.0  # s for which the body of a request that was refused is still read
KEEP_ALIVE = 75.0  # s: longer than any usual scrape interval

NO_SUCH_FAMILY = frozenset({EAFNOSUPPORT, EADDRNOTAVAIL})

# aiohttp itself answers a request that is no HTTP, and would name Python and its version.
web_response.SERVER_SOFTWARE = SOFTWARE  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False)
class Server:
    """A listening server; `cleanup` ends it."""

    runner: web.AppRunner
    listeners: Sequence[Listener]

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
        """End within a second, even if a client does not take its answer."""
        loop = asyncio.get_running_loop()
        cuts = [loop.call_later(SHUTDOWN_TIMEOUT, one.cut) for one in self.listeners]
        await self.runner.cleanup()
        for cut in cuts:
            cut.cancel()


async def serve(
    app: web.Application, host: str, port: int, *, context: "SSLContext | None" = None
) -> Server:
    """Listen on every address of the host, at the same port; the caller ends it with `cleanup()`.
    Raises OSError if it cannot listen."""
    working: set[int] = set()

    @web.middleware
    async def worked(request: web.Request, handler: Handler) -> web.StreamResponse:
        channel = request.get_extra_info("socket")
        number = -1 if channel is None else channel.fileno()
        working.add(number)
        try:
            return await handler(request)
        finally:
            working.discard(number)

    app.middlewares.insert(0, worked)
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
        listeners = [Listener(one, working) for one in await _bound(host, port)]
        for listener in listeners:
            await web.SockSite(runner, listener, ssl_context=context, backlog=BACKLOG).start()
    except OSError:
        await runner.cleanup()
        raise
    return Server(runner, listeners)


async def _bound(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host, "" for every address of IPv4 and of IPv6, all with the
    same port; port 0 takes a free port. A family that this machine lacks is left out, if another is
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
