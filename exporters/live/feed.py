"""Sends events to each open live page: first the history, and then the status of each tick."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from agent.model import Snapshot
from agent.status.build import StatusBoard


def event(name: str, data: bytes) -> bytes:
    """Return a server-sent event in its wire format."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


@dataclass(slots=True, eq=False)
class Client:
    """An open page, and which second of the history and which tick it received last. Events are
    created only when the page can receive them, so a slow page has no growing queue."""

    second: int | None = None  # last second of history that was sent
    tick: int = -1


@dataclass(slots=True, eq=False)
class Feed:
    """Provides events for all pages. The poller calls it on every tick, after the status board."""

    board: StatusBoard
    keepalive: float = 5.0  # s without a tick before a keepalive is sent
    deadlines: float = 30.0  # s within which a page must read its data
    closed: bool = False
    clients: set[Client] = field(default_factory=set)  # open pages
    _ticked: asyncio.Event = field(default_factory=asyncio.Event)
    _first: tuple[int, str] = (-1, "[]")  # a tick and its initial events

    def __call__(self, _: Snapshot) -> None:
        """Wake up all streams that wait for a tick."""
        self._ticked.set()
        self._ticked = asyncio.Event()

    def first(self) -> str:
        """Return the first events for a page as JSON that is safe in HTML: `[[name, data]]`."""
        if self._first[0] != self.board.tick:
            parts = (("history", self._history(None)), ("status", self.board.json()))
            pairs = ",".join(f'["{name}",{data.decode()}]' for name, data in parts)
            self._first = self.board.tick, f"[{pairs}]".replace("<", "\\u003c")
        return self._first[1]

    def _history(self, since: int | None) -> bytes:
        return msgspec.json.encode(self.board.history.document(since))

    async def close(self, _: object = None) -> None:
        """End all streams, so that the agent's shutdown does not wait for them."""
        self.closed = True
        self._ticked.set()

    async def ticked(self, client: Client) -> bool:
        """Wait for a tick that the client has not received. Return False after a timeout."""
        if self.closed or self.board.tick != client.tick:
            return True
        try:
            async with asyncio.timeout(self.keepalive):
                await self._ticked.wait()
        except TimeoutError:
            return False
        return True

    def news(self, client: Client) -> list[bytes]:
        """Return the events that the client has not received yet, and mark them as sent."""
        if self.board.tick == client.tick or self.board.tick < 0:
            return []
        events, newest = [], self.board.history.newest
        if client.second is None or newest is None or newest - client.second not in (0, 1):
            events.append(event("history", self._history(client.second)))
        events.append(event("status", self.board.json()))
        client.second, client.tick = newest, self.board.tick
        return events
