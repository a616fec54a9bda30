"""The snapshot as Prometheus text and OpenMetrics, built at most once a tick and format."""

import threading
from collections.abc import Callable
from gzip import compress
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector

from agent.model import Snapshot
from exporters.negotiation import OPEN, Format, negotiate
from exporters.selection import MetricsConfig
from exporters.series_lines import ExpositionLines

LONGEST = 1.0
"""Seconds that rendered bytes serve while the tick stands still: expired data must vanish."""
GZIP_LEVEL = 1


class RenderedPage(NamedTuple):
    """One rendered exposition; `at` is when, in monotonic seconds of the agent's clock."""

    tick: int
    at: float
    plain: bytes
    zipped: bytes


class Exposition:
    """Renders the newest snapshot; the bytes serve everyone else of that tick."""

    enabled = True

    def __init__(
        self,
        latest: Callable[[], Snapshot],
        now: Callable[[], float],
        *,
        process: bool = True,
        selected: Callable[[], MetricsConfig] = MetricsConfig,
    ) -> None:
        self._latest = latest
        self.now = now
        self._selected = selected
        self._selection: MetricsConfig | None = None
        self._pages: dict[str, RenderedPage] = {}
        self._lines: dict[str, ExpositionLines] = {}
        self._one_at_a_time = threading.Lock()
        self._registry = CollectorRegistry()
        if process:
            ProcessCollector(registry=self._registry)

    def render(self, accept: str, *, gzip: bool = False) -> tuple[bytes, str]:
        """Body and Content-Type. May take tens of milliseconds: not for the event loop."""
        page = self.page(accept)
        return page.zipped if gzip else page.plain, negotiate(accept).content_type

    def page(self, accept: str) -> RenderedPage:
        """Return the page whose body `render` builds; takes as long."""
        form = negotiate(accept)
        with self._one_at_a_time:
            page = self.cached(accept)
            if page is None:
                snapshot, at = self._latest(), self.now()
                plain = self.write(snapshot, at, form)
                page = RenderedPage(snapshot.tick, at, plain, compress(plain, GZIP_LEVEL, mtime=0))
                self._pages[form.content_type] = page
            return page

    def cached(self, accept: str) -> RenderedPage | None:
        """The page of the newest tick, if that is already built; never blocks."""
        page = self._pages.get(negotiate(accept).content_type)
        if page is None or page.tick != self._latest().tick or self.now() - page.at > LONGEST:
            return None
        return page

    def write(self, snapshot: Snapshot, at: float, form: Format) -> bytes:
        """The text of a snapshot at a time (monotonic seconds)."""
        selection = self._selected()
        if selection != self._selection:  # at the start, and after a reload
            self._selection = selection
            self._lines.clear()
        lines = self._lines.setdefault(
            form.content_type, ExpositionLines(form is OPEN, selection.exports)
        )
        return lines.write(snapshot.samples(at)).encode() + form.encode(self._registry)
