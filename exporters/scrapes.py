"""Answers scrapes, few or many, without delaying the tick or each other.

Writing the exposition of 8 GPUs takes some 5 ms. One thread does it, once for all who ask; who
asks meanwhile gets what was written for the tick before, if that is no older than a second. Where
many ask in every tick it is written ahead, as soon as the tick is over.
"""

from dataclasses import dataclass, field
from functools import partial
from math import inf

from agent.model import Snapshot
from exporters.negotiation import negotiate
from exporters.prometheus import Exposition
from exporters.shared_work import SharedWork

MANY = 8
"""Scrapes in one tick from which the next pages are written ahead: one or two Prometheus servers
scrape every few seconds, and need what is new when they ask, and nothing in between."""

WHILE = 3
"""Ticks for which they are: crowds come once a second too, now before a tick and now behind it."""

Answer = tuple[bytes, str]
"""Body and Content-Type."""


@dataclass(slots=True)
class RenderedForm:
    """One form of the exposition, as it is asked for."""

    accept: str = ""
    asked: int = 0  # in this tick
    ahead: int = 0  # ticks for which it is written ahead


@dataclass(slots=True, eq=False)
class Scrapes:
    """Everything that `/metrics` answers; on the event loop."""

    exposition: Exposition
    work: SharedWork = field(default_factory=SharedWork)
    _forms: dict[str, RenderedForm] = field(default_factory=dict)  # by Content-Type: a handful
    _newest: float = inf  # tick; until one is reported, no page counts as that of the newest

    async def answer(self, accept: str, *, gzip: bool) -> Answer:
        """The newest exposition in the form that is asked for."""
        content_type = negotiate(accept).content_type
        form = self._forms.setdefault(content_type, RenderedForm())
        form.accept, form.asked = accept, form.asked + 1
        page = self.exposition.cached(accept, self._newest)
        if page is None and self.work.is_under_way(content_type):
            page = self.exposition.last(accept, self._newest)
        if page is None:
            page = await self.work.of(content_type, partial(self.exposition.page, accept))
        return page.body(gzip=gzip), content_type

    def tick(self, snapshot: Snapshot) -> None:
        """A listener of the poller: write ahead what many ask for."""
        self._newest = snapshot.tick
        for content_type, form in self._forms.items():
            form.ahead = WHILE if form.asked >= MANY else max(0, form.ahead - 1)
            form.asked = 0
            if form.ahead:
                self.work.begin(content_type, partial(self.exposition.page, form.accept))
