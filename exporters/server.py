"""Listening: connections bounded in number and in time, TLS as the web configuration is now.

Sockets are accepted here, and not by asyncio's server, so that each connection gets the TLS
context, or none, that holds when it comes.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from ipaddress import ip_address
from typing import Any

from aiohttp import web

from exporters import complaints
from exporters.patience import Patience

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 128  # a client that does not take its answer may hold half a megabyte
SEND_BUFFER = 64 * 1024  # bytes of the kernel for each; left alone it takes ten times as much
BACKLOG = 128
HANDSHAKE = 10.0  # s for TLS to be agreed on
BREATH = 1.0  # s until the next try where the machine has no socket left
FAREWELL = 3.0  # s that requests in flight get when the agent ends, and TLS to say goodbye
LINGER = 1.0  # s for which the body of a request that was refused is still read
KEEP_ALIVE = 75.0  # s: longer than any usual scrape interval

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 22\r\nConnection: close\r\n\r\nToo many connections.\n"
)

Context = Callable[[], ssl.SSLContext | None]


@dataclass(slots=True, eq=False)
class Server:
    """A listening server; `cleanup` ends it."""

    runner: web.AppRunner
    patience: Patience
    context: Context
    most: int = MOST_CONNECTIONS
    _sockets: list[socket.socket] = field(default_factory=list)
    working: list[asyncio.Task[None]] = field(default_factory=list)  # for ever, unless one breaks
    _greeting: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def addresses(self) -> list[Any]:
        """What it listens on, as the kernel tells: (host, port, ...)."""
        return [listening.getsockname() for listening in self._sockets]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return all(ip_address(address[0]).is_loopback for address in self.addresses)

    async def start(self, host: str, port: int) -> None:
        """Begin to listen on every address of the host; raises OSError where it cannot."""
        await self.runner.setup()
        try:
            self._sockets = await _listening(host, port)
        except OSError:
            await self.runner.cleanup()
            raise
        self.working = [asyncio.create_task(self._accept(s)) for s in self._sockets]
        self.working.append(asyncio.create_task(self.patience.watch()))

    async def cleanup(self) -> None:
        """Stop listening, let requests in flight end, close everything."""
        tasks = *self.working, *self._greeting
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        await self.runner.cleanup()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                arrived, _ = await loop.sock_accept(listening)
            except OSError as error:  # gone again already, or no descriptor is left
                log.debug('event=accept_failed error="%s"', error)
                await asyncio.sleep(BREATH if not isinstance(error, ConnectionError) else 0)
                continue
            if self.patience.count() + len(self._greeting) >= self.most:
                _turn_away(arrived, plain=self.context() is None)
                continue
            task = asyncio.create_task(self._greet(arrived))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, arrived: socket.socket) -> None:
        """Hand a connection over to HTTP, after TLS where that is asked for."""
        server = self.runner.server
        assert server is not None
        context = self.context()
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                server,
                arrived,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE if context else None,
                ssl_shutdown_timeout=FAREWELL if context else None,
            )
        except OSError as error:  # not of our TLS, or too slow, or gone; asyncio has closed it
            log.debug('event=handshake_failed error="%s"', error)
        else:
            self.patience.meet(transport, arrived)


async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    context: Context = lambda: None,
    most: int = MOST_CONNECTIONS,
    patience: Patience | None = None,
) -> Server:
    """Listen; the caller ends it with `cleanup()`. Raises OSError where it cannot listen."""
    patience = patience or Patience()
    app.middlewares.insert(0, patience.middleware())
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=complaints.LOG,
        auto_decompress=False,  # nobody reads a body
        keepalive_timeout=KEEP_ALIVE,
        shutdown_timeout=FAREWELL,
        lingering_time=LINGER,
    )
    server = Server(runner, patience, context, most)
    await server.start(host, port)
    return server


async def _listening(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host; a family that this machine has not is left out, as
    long as one is left."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    opened: list[socket.socket] = []
    failure: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            opened.append(_bound(family, address))
        except OSError as error:
            if error.errno not in NO_SUCH_FAMILY:
                for listening in opened:
                    listening.close()
                raise
            failure = error
    if failure is not None and not opened:
        raise failure
    return opened


NO_SUCH_FAMILY = frozenset({EAFNOSUPPORT, EADDRNOTAVAIL})


def _bound(family: int, address: Any) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _turn_away(arrived: socket.socket, *, plain: bool) -> None:
    """Say why, where that can be said in one packet, and close."""
    with arrived, suppress(OSError):
        if plain:
            arrived.send(FULL)
