"""How long a connection may take: whoever sends or reads too slowly is cut off.

A connection has a deadline whenever no handler works for it: for its first request, for the next
one, and for taking the answer.
"""

import asyncio
import socket
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from aiohttp import web
from aiohttp.typedefs import Middleware

FIRST_REQUEST = 10.0  # s from the connection to whole headers
NEXT_REQUEST = 90.0  # s from one request to whole headers of the next: HTTP's keep-alive ends first
LOOK = 1.0  # s between two looks at the deadlines

Channel = socket.socket | TransportSocket

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: what was not sent by then is thrown away, in the kernel too."""


@dataclass(slots=True, eq=False)
class Visit:
    """One open connection. Its socket is asked and not its transport: one that is closing, but
    whose client does not take the rest, still holds memory."""

    channel: Channel
    deadline: float  # s of the event loop's clock

    @property
    def is_over(self) -> bool:
        return self.channel.fileno() == -1

    def cut(self) -> None:
        """End it whatever state it is in: the transport finds its socket shut, and closes."""
        with suppress(OSError):
            self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            self.channel.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True, eq=False)
class Patience:
    """Every open connection with its deadline."""

    first: float = FIRST_REQUEST
    next: float = NEXT_REQUEST
    look: float = LOOK
    _visits: dict[asyncio.BaseTransport, Visit] = field(default_factory=dict)

    def meet(self, transport: asyncio.BaseTransport, channel: Channel) -> Visit:
        """A connection that was made just now; it may have been quick to ask already."""
        return self._visits.setdefault(transport, Visit(channel, _now() + self.first))

    def count(self) -> int:
        """How many connections are open."""
        self._forget()
        return len(self._visits)

    def middleware(self) -> Middleware:
        """Stands before all others: no deadline while a request is worked on."""

        @web.middleware
        async def timed(
            request: web.Request,
            handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
        ) -> web.StreamResponse:
            channel = request.get_extra_info("socket")
            if request.transport is None or channel is None:
                return await handler(request)  # it is gone already
            visit = self.meet(request.transport, channel)
            visit.deadline = inf
            try:
                return await handler(request)
            finally:
                visit.deadline = _now() + self.next

        return timed

    async def watch(self) -> None:
        """Cut off who is late, for ever."""
        while True:
            await asyncio.sleep(self.look)
            self._forget()
            now = _now()
            for visit in self._visits.values():
                if visit.deadline < now:
                    visit.cut()

    def _forget(self) -> None:
        for transport in [t for t, visit in self._visits.items() if visit.is_over]:
            del self._visits[transport]


def _now() -> float:
    return asyncio.get_running_loop().time()
