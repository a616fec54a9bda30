"""Samples as text: each line as prometheus_client writes it, in a fifth of its time. What stands
before a value does not change: it is made once for each series, and kept while the series comes."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite

from prometheus_client.utils import floatToGoString

from agent.errors import LogEvent, encodable
from agent.model import Kind, Metric, Sample

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
    """Writes snapshots in one format; `exports` chooses the series. A family that cannot be written
    costs only itself."""

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
