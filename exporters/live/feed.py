"""The feed of the live page: the history always, and the events of a tick while a page is open."""

import asyncio
import json
import logging
import secrets
from dataclasses import dataclass, field

from agent.errors import LogEvent
from agent.model import Snapshot
from agent.status.build import StatusBoard
from agent.status.history import History
from exporters.live.findings_document import FindingsDocument, findings_document
from exporters.live.page_state import PageState
from exporters.live.view import View

log = logging.getLogger(__name__)

AFRESH = 5
"""Ticks between two refreshes."""

ALONE = 50
"""The same while no page is open: a look takes 20 ms of a processor, and only since when something
is wrong comes of it."""

Event = bytes
"""One event as it goes over the wire."""


def event(name: str, content: object, place: str = "") -> Event:
    """One server-sent event; `place` is what a browser says when it comes back."""
    data = json.dumps(content, allow_nan=False, separators=(",", ":"))
    mark = f"id: {place}\n" if place else ""
    return f"event: {name}\n{mark}data: {data}\n\n".encode()


@dataclass(slots=True, eq=False)
class Client:
    """One open page: what it has been sent. It holds no events, so a slow one costs nothing."""

    second: int | None = None  # up to which it has the history
    edition: int = -1
    tick: int = -1


@dataclass(slots=True, eq=False)
class Feed:
    """A listener of the poller. Whatever is sent is made once a tick, for all pages."""

    view: View
    board: StatusBoard | None = None
    history: History = field(init=False)
    keepalive: float = 5.0  # s without a tick after which a page hears that the line stands
    deadlines: float = 30.0  # s that a page may take to read what it was sent
    closed: bool = False
    refreshes: int = 0  # through everything, so far
    _run: str = field(default_factory=lambda: secrets.token_hex(4))
    _clients: set[Client] = field(default_factory=set)
    _page_state: PageState | None = None
    _snapshot: Snapshot | None = None
    _known: FindingsDocument = field(default_factory=FindingsDocument)
    _refreshing: asyncio.Task[None] | None = None
    _ticked: asyncio.Event = field(default_factory=asyncio.Event)
    _machine: Event = b""
    _tick: Event = b""
    _rendered: int = -1  # the tick that `_tick` reports
    _edition: int = -1  # that `_machine` and `_tick` have
    _first: tuple[int, str] = (-1, "[]")  # what a page is sent first at a tick
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)  # of it: one client at a time

    def __post_init__(self) -> None:
        own = self.view.diagnosis.inventory, self.view.samples
        self.history = self.board.history if self.board else History(*own)

    @property
    def pages(self) -> int:
        return len(self._clients)

    def __call__(self, snapshot: Snapshot) -> None:
        """Take in a tick."""
        self._snapshot = snapshot
        if self.board is None:
            self.history.take(snapshot)
        if self._clients:
            self._render(snapshot)
        self._refresh_if_due(snapshot)
        self._wake()

    def _wake(self) -> None:
        self._ticked.set()
        self._ticked = asyncio.Event()

    def _render(self, snapshot: Snapshot) -> None:
        if self._page_state is None:
            self._page_state = PageState(self.view)
        page_state = self._page_state
        page_state.take(snapshot, self._known, self.history)
        if page_state.edition != self._edition:
            self._edition = page_state.edition
            self._machine = event("machine", page_state.machine())
        self._tick = event("tick", page_state.tick(), self._place())
        if self.board:
            self._tick += b"event: status\ndata: " + self.board.json() + b"\n\n"
        self._rendered = snapshot.tick

    def _place(self) -> str:
        return f"{self._run}-{self.history.newest}"

    def _refresh_if_due(self, snapshot: Snapshot) -> None:
        """Work out findings and absences off the loop now and then, one at a time."""
        idle = self._refreshing is None or self._refreshing.done()
        if idle and snapshot.tick - self._known.tick >= (AFRESH if self._clients else ALONE):
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        self.refreshes += 1
        try:
            self._known = await asyncio.to_thread(findings_document, self.view, self._known)
        except Exception:  # what is wrong with the machine must not stop the page
            log.exception(LogEvent("look_failed"))
            tick = self._snapshot.tick if self._snapshot else -1
            self._known = FindingsDocument(tick, timeline=self._known.timeline)

    async def join(self, client: Client) -> None:
        """A page opens: make what is known now ready for it, unless it was for another."""
        self._clients.add(client)
        if self._snapshot is None or self._rendered == self._snapshot.tick:
            return
        await self._refresh()
        self._render(self._snapshot)

    async def first(self) -> str:
        """Return the first events of a page as JSON for HTML, `[[name, data]]`, once a tick."""
        async with self._making:
            tick = self._snapshot.tick if self._snapshot else -1
            if self._first[0] != tick:
                client = Client()
                try:
                    await self.join(client)
                    parts = [part for one in self.news(client) for part in one.split(b"\n\n")]
                    events = [part.decode().splitlines() for part in parts if part]
                finally:
                    self.leave(client)
                pairs = (f'["{one[0][7:]}",{one[-1][6:]}]' for one in events)
                self._first = tick, f"[{','.join(pairs)}]".replace("<", "\\u003c")
            return self._first[1]

    def leave(self, client: Client) -> None:
        """A page is closed; with the last of them goes what is only kept for pages."""
        self._clients.discard(client)
        if not self._clients:
            self._page_state, self._rendered, self._edition = None, -1, -1

    def close(self) -> None:
        """The agent ends: every stream ends at once."""
        self.closed = True
        self._wake()

    async def ticked(self, client: Client) -> bool:
        """Wait for a tick that the page does not have; False if none comes for a while."""
        if self.closed or self._rendered != client.tick:
            return True
        try:
            async with asyncio.timeout(self.keepalive):
                await self._ticked.wait()
        except TimeoutError:
            return False
        return True

    def back(self, place: str) -> int | None:
        """The second at which a page that comes back left this very run of the agent."""
        run, _, second = place.partition("-")
        return int(second) if run == self._run and second.isascii() and second.isdigit() else None

    def news(self, client: Client) -> list[Event]:
        """Return the events that this page does not have yet, however long it was away; they count
        as sent."""
        if self._rendered == client.tick:
            return []
        events = []
        newest = self.history.newest
        if client.second is None or newest is None or newest - client.second not in (0, 1):
            events.append(event("history", self.history.document(client.second), self._place()))
        if client.edition != self._edition:
            events.append(self._machine)
        events.append(self._tick)
        client.second, client.edition, client.tick = newest, self._edition, self._rendered
        return events
