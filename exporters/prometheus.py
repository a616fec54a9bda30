"""The snapshot as Prometheus text and OpenMetrics, built at most once a tick and format."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from gzip import compress

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agent.model import Snapshot
from exporters.guard import Guard
from exporters.negotiation import Format, negotiate
from exporters.selection import MetricsConfig
from exporters.series_lines import ExpositionLines

LONGEST = 1.0
"""Seconds that rendered bytes serve while the tick stands still: expired data must vanish."""
GZIP_LEVEL = 1


class GuardedCollector:
    """A collector whose errors cost only its own families."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._guard = Guard(type(collector).__name__)

    def describe(self) -> list[Metric]:
        """Nothing, as the collector would have to be asked first."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What the collector yields before it raises, if it does."""
        with self._guard():
            yield from self._collector.collect()


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """One rendered exposition; `at` is when, in monotonic seconds of the agent's clock."""

    tick: int
    at: float
    plain: bytes
    zipped: bytes

    def body(self, *, gzip: bool) -> bytes:
        return self.zipped if gzip else self.plain


class Exposition:
    """Renders the newest snapshot; the bytes serve everyone else of that tick."""

    def __init__(
        self,
        latest: Callable[[], Snapshot],
        now: Callable[[], float],
        *,
        process: bool = True,
        extras: Iterable[Collector] = (),
        selected: Callable[[], MetricsConfig] = MetricsConfig,
    ) -> None:
        self._latest = latest
        self.now = now
        self._selected = selected
        self._selection = selected()
        self._pages: dict[str, RenderedPage] = {}
        self._lines: dict[str, ExpositionLines] = {}
        self._one_at_a_time = threading.Lock()
        self._registry = CollectorRegistry()
        if process:
            self._registry.register(GuardedCollector(ProcessCollector(registry=None)))
        for collector in extras:
            self._registry.register(GuardedCollector(collector))

    @property
    def enabled(self) -> bool:
        """Whether the settings let it be reported."""
        return True

    def render(self, accept: str, *, gzip: bool = False) -> tuple[bytes, str]:
        """Body and Content-Type. May take tens of milliseconds: not for the event loop."""
        return self.page(accept).body(gzip=gzip), negotiate(accept).content_type

    def page(self, accept: str) -> RenderedPage:
        """What `render` takes its body from; takes as long."""
        form = negotiate(accept)
        with self._one_at_a_time:
            return self._built(form, self._latest().tick) or self._build(form)

    def cached(self, accept: str, tick: float) -> RenderedPage | None:
        """The page of this tick, if that is already built; never blocks."""
        return self._built(negotiate(accept), tick)

    def last(self, accept: str, tick: float) -> RenderedPage | None:
        """The page of this tick or of the one before, which the next replaces in no time."""
        return self._built(negotiate(accept), tick, ticks=2)

    def _built(self, form: Format, tick: float, ticks: int = 1) -> RenderedPage | None:
        page = self._pages.get(form.content_type)
        if page is None or page.tick <= tick - ticks:
            return None
        return page if self.now() - page.at <= ticks * LONGEST else None

    def _build(self, form: Format) -> RenderedPage:
        snapshot = self._latest()
        at = self.now()
        plain = self.write(snapshot, at, form)
        zipped = compress(plain, GZIP_LEVEL, mtime=0)
        page = self._pages[form.content_type] = RenderedPage(snapshot.tick, at, plain, zipped)
        return page

    def write(self, snapshot: Snapshot, at: float, form: Format) -> bytes:
        """The text of a snapshot at a time (monotonic seconds)."""
        if self._selection != self._selected():  # after a reload
            self._selection = self._selected()
            self._lines.clear()
        exports = self._selection.exports
        lines = self._lines.setdefault(form.content_type, ExpositionLines(form.encode, exports))
        return lines.write(snapshot.samples(at)).encode() + form.encode(self._registry)
