"""The snapshot as Prometheus text and OpenMetrics, built at most once a tick and format."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from gzip import compress
from math import isfinite
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import exposition as text
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from agent.errors import LogEvent, encodable
from agent.model import Kind, Metric, Sample, Snapshot
from exporters.settings import MetricsConfig

OPENMETRICS, TEXT = "application/openmetrics-text", "text/plain"
SEEN = 16
"""Headers of which the answer is kept, at most 8 KB each: a client sends the same each time."""


class Format(NamedTuple):
    """One exposition format: its Content-Type, and how the library writes a registry in it."""

    content_type: str
    encode: Callable[[Collector], bytes]


PLAIN = Format(f"{TEXT}; version=0.0.4; charset=utf-8", text.generate_latest)
OPEN = Format(f"{OPENMETRICS}; version=1.0.0; charset=utf-8", openmetrics.generate_latest)


@lru_cache(SEEN)
def negotiate(accept: str) -> Format:
    """OpenMetrics 1.0.0 where the client likes it best, else the oldest text format."""
    for value, parameters in by_preference(accept):
        if value in (TEXT, "text/*", "*/*"):
            return PLAIN
        if value == OPENMETRICS and parameters.get("version", "1.0.0") == "1.0.0":
            return OPEN
    return PLAIN


@lru_cache(SEEN)
def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the client named gzip without refusing it."""
    return any(value == "gzip" for value, _ in by_preference(accept_encoding))


def by_preference(header: str) -> list[tuple[str, dict[str, str]]]:
    """The elements of a header with their parameters, the best liked first; one of quality 0, or of
    one that is no number, is refused."""
    found = []
    for element in header.lower().split(","):
        value, *rest = (part.strip() for part in element.split(";"))
        pairs = (part.partition("=") for part in rest)
        parameters = {name.strip(): text.strip().strip('"') for name, _, text in pairs}
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            quality = 0.0
        if quality > 0:
            found.append((quality, value, parameters))
    found.sort(key=lambda choice: -choice[0])
    return [(value, parameters) for _, value, parameters in found]


log = logging.getLogger(__name__)


class Guard:
    """Errors of one metric cost only its own series; logged when they begin and end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failing = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A bug in one part must not blind Prometheus to the others."""
        try:
            yield
        except Exception:
            if not self._failing:
                log.exception(LogEvent("collector_failed", collector=self._name))
            self._failing = True
        else:
            if self._failing:
                log.info(LogEvent("collector_recovered", collector=self._name))
            self._failing = False


Labels = tuple[str, ...]
ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def head(name: str, kind: str, words: str, *, openmetrics: bool = False) -> str:
    if openmetrics:
        name = name.removesuffix("_total") if kind == Kind.COUNTER else name
    escaped = words.translate(ESCAPES if openmetrics else {**ESCAPES, ord('"'): '"'})
    return f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n"


def start(name: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return f"{name} "
    pairs = (f'{key}="{encodable(labels[key]).translate(ESCAPES)}"' for key in sorted(labels))
    return f"{name}{{{','.join(pairs)}}} "


def line(start: str, value: float) -> str:
    return f"{start}{floatToGoString(value)}\n"  # type: ignore[no-untyped-call]


@dataclass(slots=True, eq=False)
class ExpositionLines:
    """Writes snapshots in one format, each line as prometheus_client does, in a fifth of its time:
    what stands before a value is made once for each series. `exports` chooses the series. A family
    that cannot be written costs only itself."""

    openmetrics: bool
    exports: Callable[[Metric, Labels], bool]
    _starts: dict[str, dict[Labels, str]] = field(default_factory=dict)  # "": not exported
    _guards: dict[str, Guard] = field(default_factory=dict)

    def write(self, samples: Iterable[Sample]) -> str:
        """Families in the order of their names, samples in the order of their label values; of a
        series that comes twice the last counts, and what is no number is left out."""
        families: dict[str, list[Sample]] = {}
        for sample in samples:
            if sample.metric.kind is not Kind.INTERNAL:
                families.setdefault(sample.metric.name, []).append(sample)
        parts = []
        for name in sorted(families):
            guard = self._guards.get(name) or self._guards.setdefault(name, Guard(name))
            with guard():
                parts += self._family(families[name])
        return "".join(parts)

    def _family(self, samples: list[Sample]) -> list[str]:
        metric = samples[0].metric
        values = {labels: value for _, labels, value in samples if isfinite(value)}
        before, starts = self._starts.get(metric.name, {}), {}
        lines = []
        for labels in sorted(values):
            text = before.get(labels)
            if text is None:
                exported = self.exports(metric, labels)
                named = dict(zip(metric.labels, labels, strict=True))
                text = start(metric.name, named) if exported else ""
            starts[labels] = text
            if text:
                lines.append(line(text, values[labels]))
        self._starts[metric.name] = starts
        top = head(metric.name, metric.kind, metric.help, openmetrics=self.openmetrics)
        return [top, *lines] if lines else []


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
