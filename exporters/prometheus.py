"""The snapshot as Prometheus text and OpenMetrics, built at most once a tick and format."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from gzip import compress
from math import isfinite

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.clock import Clock
from agent.errors import LogEvent
from agent.model import Kind, Snapshot
from exporters.negotiation import Format, negotiate

log = logging.getLogger(__name__)

LONGEST = 1.0
"""Seconds that rendered bytes serve while the tick stands still: expired data must vanish."""
GZIP_LEVEL = 1

FAMILIES: dict[Kind, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
}


class SnapshotCollector:
    """A prometheus_client collector over the newest snapshot; its families live for one scrape."""

    def __init__(self, latest: Callable[[], Snapshot], clock: Clock) -> None:
        self._latest = latest
        self._clock = clock

    def describe(self) -> list[Metric]:
        """Nothing: what is exported differs from machine to machine and from tick to tick."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Families in the order of their names, samples in the order of their label values."""
        metrics = {}
        values: dict[str, dict[tuple[str, ...], float]] = {}
        for metric, labels, value in self._latest().samples(self._clock.monotonic()):
            if metric.kind in FAMILIES and isfinite(value):
                metrics[metric.name] = metric
                values.setdefault(metric.name, {})[labels] = value
        for name in sorted(metrics):
            metric = metrics[name]
            family = FAMILIES[metric.kind](name, metric.help, labels=metric.labels)
            for labels, value in sorted(values[name].items()):
                family.add_metric([encodable(label) for label in labels], value)
            yield family


class GuardedCollector:
    """A collector whose errors cost only its own families; logged when they begin and end."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._failing = False

    def describe(self) -> list[Metric]:
        """Nothing, as the collector would have to be asked first."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What the collector yields before it raises, if it does."""
        try:
            yield from self._collector.collect()
            self._note(failing=False)
        except Exception:  # a bug in one collector must not blind Prometheus to the others
            self._note(failing=True)

    def _note(self, *, failing: bool) -> None:
        name = type(self._collector).__name__
        if failing and not self._failing:
            log.exception(LogEvent("collector_failed", collector=name))
        elif self._failing and not failing:
            log.info(LogEvent("collector_recovered", collector=name))
        self._failing = failing


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
        clock: Clock,
        *,
        process: bool = True,
        extras: Iterable[Collector] = (),
    ) -> None:
        self._latest = latest
        self._clock = clock
        self._rendered = Snapshot(tick=-1, at=0.0, wall=0.0)
        self._pages: dict[str, RenderedPage] = {}
        self._one_at_a_time = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(GuardedCollector(SnapshotCollector(lambda: self._rendered, clock)))
        if process:
            self._registry.register(GuardedCollector(ProcessCollector(registry=None)))
        for collector in extras:
            self._registry.register(GuardedCollector(collector))

    def render(self, accept: str, *, gzip: bool = False) -> tuple[bytes, str]:
        """Body and Content-Type. May take tens of milliseconds: not for the event loop."""
        return self.page(accept).body(gzip=gzip), negotiate(accept).content_type

    def page(self, accept: str) -> RenderedPage:
        """What `render` takes its body from; takes as long."""
        form = negotiate(accept)
        page = self._fresh(form)
        if page is None:
            with self._one_at_a_time:
                page = self._fresh(form) or self._build(form)
        return page

    def cached(self, accept: str) -> RenderedPage | None:
        """The page of this tick, if that is already built; never blocks."""
        return self._fresh(negotiate(accept))

    def last(self, accept: str) -> RenderedPage | None:
        """The page of this tick or of the one before, which the next replaces in no time."""
        page = self._pages.get(negotiate(accept).content_type)
        if page is None or page.tick < self._latest().tick - 1:
            return None
        return page if self._clock.monotonic() - page.at <= 2 * LONGEST else None

    def _fresh(self, form: Format) -> RenderedPage | None:
        page = self._pages.get(form.content_type)
        if page is None or page.tick != self._latest().tick:
            return None
        return page if self._clock.monotonic() - page.at <= LONGEST else None

    def _build(self, form: Format) -> RenderedPage:
        self._rendered = self._latest()
        at = self._clock.monotonic()
        plain = form.encode(self._registry)
        zipped = compress(plain, GZIP_LEVEL, mtime=0)
        page = self._pages[form.content_type] = RenderedPage(self._rendered.tick, at, plain, zipped)
        return page


def encodable(label: str) -> str:
    """A label value that UTF-8 can carry: undecodable bytes of a name become question marks."""
    return label if label.isascii() else label.encode("utf-8", "replace").decode("utf-8")
