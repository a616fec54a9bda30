"""The HTTP server: aiohttp's runner with a limit on open connections."""

import logging
import os
import socket
from asyncio import Transport
from collections import Counter
from collections.abc import Callable
from errno import EADDRINUSE, EADDRNOTAVAIL
from functools import wraps
from typing import TYPE_CHECKING, Any

from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError

from agent.errors import BadInput
from exporters.http import SOFTWARE
from exporters.settings import parse_listen

if TYPE_CHECKING:  # not loaded unless TLS is used
    from ssl import SSLContext

MOST_CONNECTIONS = 256
"""Maximum number of open connections of all clients. The agent may open 1,024 files. A local user
can use any address in 127.0.0.0/8. A connection takes up to half a megabyte until it is read."""

OF_THE_OTHER_END = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
REQUESTS = logging.getLogger("exporters.requests")
REQUESTS.addFilter(lambda record: not isinstance((record.exc_info or (0, 0))[1], OF_THE_OTHER_END))

SEND_BUFFER = 64 * 1024  # bytes per connection; the kernel's default is ten times larger
TLS_BUFFER = 16 * 1024  # bytes per connection; asyncio's default is 16 times larger

Server = web.AppRunner
"""A listening server. Its method `cleanup` stops it."""

# aiohttp itself responds to malformed requests, and would reveal the version of Python.
web_response.SERVER_SOFTWARE = SOFTWARE  # type: ignore[attr-defined]


async def serve(
    app: web.Application,
    listen: str,
    *,
    context: "SSLContext | None" = None,
    most: int = MOST_CONNECTIONS,
) -> Server:
    """Serve `app` on all addresses of `HOST:PORT`. An empty host means all IPv4 and IPv6 addresses.
    `most` is the maximum number of open connections. Raise BadInput if listening fails."""
    host, port = parse_listen(listen)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=REQUESTS,
        auto_decompress=False,  # no route reads a body
        keepalive_timeout=75.0,  # s, longer than any usual scrape interval
        lingering_time=1.0,  # s for which the rest of a rejected request is read
        shutdown_timeout=0.25,  # s for requests in progress to complete
    )
    await runner.setup()
    told: Any = runner.server
    if context:
        from asyncio.sslproto import SSLProtocol

        told, SSLProtocol.max_size = SSLProtocol, TLS_BUFFER
    told.connection_made = _limited(told.connection_made, most)
    try:
        await web.TCPSite(runner, host or None, port, ssl_context=context).start()
    except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
        await runner.cleanup()
        code = getattr(error, "errno", None) or 0
        if code == EADDRNOTAVAIL and not host:  # IPv6 is disabled
            return await serve(app, f"0.0.0.0:{port}", context=context, most=most)
        why = os.strerror(code) if code > 0 else str(getattr(error, "strerror", error))
        if code == EADDRINUSE:
            why += f"; --listen {listen.rpartition(':')[0]}:0 takes a free port"
        raise BadInput(f"cannot listen on {listen}: {why}") from error
    return runner


def _limited(
    connect: Callable[[Any, Transport], None], most: int
) -> Callable[[Any, Transport], None]:
    """Return `connect` with a limit on open connections, because asyncio and aiohttp have none. If
    a connection exceeds the limit, close the oldest connection of the client with the most
    connections. The limit applies before the TLS handshake, because a client may never begin it."""
    connect = getattr(connect, "__wrapped__", connect)
    clients: dict[Transport, str] = {}

    @wraps(connect)
    def connected(protocol: object, transport: Transport) -> None:
        connect(protocol, transport)
        channel = transport.get_extra_info("socket")
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        for one in [one for one in clients if one.is_closing()]:
            del clients[one]
        clients[transport] = (transport.get_extra_info("peername") or ("",))[0]
        if len(clients) > most:
            ((largest, _),) = Counter(clients.values()).most_common(1)
            next(one for one, client in clients.items() if client == largest).abort()

    return connected
