"""A fault: one declaration, from which `check`, the page, rules, inhibitions and runbook come."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from agent.faults.places import GPU, RACK, Place
from agent.faults.places import NODE as MACHINE
from agent.faults.promql import NODE, Condition, Recording, of
from agent.model import Figure, Finding, GpuKey, Metric, Severity, Snapshot
from agent.series import SampleStore
from agent.sources.agent_health import LAST_TICK
from agent.specs.sheets import SystemSpec

PAGES = Path(__file__).parent / "pages"
"""The runbook: a Markdown file for each alert, named after it."""

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


INSTANT = re.compile(
    r"(?<![\w:])(?:dgx_\w+|[a-z_]+:\w+:\w+)(?![\w:])(?:\{[^}]*\})?(?! *[\[{]| offset)"
)
"""A selector of an instant: of a metric or record, without a range or an offset."""


def alert_names() -> frozenset[str]:
    """The names of all alerts: each has its page."""
    return frozenset(path.stem for path in PAGES.glob("Dgx*.md"))


class Look(NamedTuple):
    """Input of the search for faults."""

    samples: SampleStore
    snapshot: Snapshot
    spec: SystemSpec | None


class Seen(NamedTuple):
    """One instance of a fault; `severity` where it differs from case to case."""

    gpu: GpuKey | None = None
    device: str = ""
    figures: tuple[Figure, ...] = ()
    names: tuple[str, ...] = ()
    severity: Severity | None = None
    labels: tuple[tuple[str, str], ...] = ()


class Listed(NamedTuple):
    """Names that a sentence lists: a label of each series of the metric, on the same GPU, that
    has this value."""

    metric: Metric
    label: str
    value: float


class Term(NamedTuple):
    """A word of a sentence that only this fault has: of a finding, and as a Go template."""

    found: Callable[[Finding], str]
    template: str


SAME_NODE = ("cluster", "instance")
SAME_GPU, SAME_DEVICE = (*SAME_NODE, "uuid"), (*SAME_NODE, "device")
SAME_PORT = (*SAME_DEVICE, "port")


class HiddenBy(NamedTuple):
    """An alert that holds this one back where both have the `same` labels; matchers narrow either
    side down: `having` what hides, `only` what is hidden."""

    alert: str
    same: tuple[str, ...]
    having: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


Action = str | Callable[[Finding], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. What `kind` names is a finding of `check` and the page, what `alert` names an
    alert; several faults of one alert differ in their `labels`.

    `when` is one condition for both. If an alert looks at minutes that one look does not have,
    `when` is PromQL and `look` finds the same on samples. Without `when` there is no rule: `alert`
    names the page of the runbook.
    """

    severity: Severity | Literal["none"] = WARNING
    kind: str = ""
    alert: str = ""
    place: Place | None = None  # None: no place in particular
    when: Condition | str = ""
    look: Callable[[Look], Iterable[Seen]] | None = None
    hold: str = "0s"  # for how long `when` holds before it alerts, as Prometheus writes it
    fires: Callable[[Finding], str] | None = None
    """Of findings without a rule of their own: the hold of the rule that finds the same, or `from`
    which share it alerts; empty where no alert follows."""
    labels: Mapping[str, str] = field(default_factory=dict)
    sentence: Sequence[str] = ()  # its parts; one is left out if a figure of it is not known
    summary: str = ""  # of the alert, in a few words, if that is not the sentence
    figure: str = ""  # the name of its value in the sentence
    unit: str = "count"
    limit: Metric | float | None = None
    device: str = ""  # the label that names what it is about
    names: tuple[str, ...] = ()  # labels that the sentence asks for by number
    listed: Listed | None = None
    terms: Mapping[str, Term] = field(default_factory=dict)
    do: Action = ""  # the first step
    description: str = ""  # of the alert, where its rule says more than the sentence
    of_node: str = ""  # sentence of one alert for all GPUs of a machine
    hidden_by: tuple[HiddenBy, ...] = ()

    @property
    def expr(self) -> str:
        return f"count without (gpu, uuid) ({self.when})" if self.of_node else str(self.when)

    def bridged(self, hold: str) -> str:
        """PromQL that holds through failed scrapes, for so long at most: a failed scrape marks all
        series of its target as stale, and `for` would begin again."""
        gauges, span = INSTANT.search(self.expr), f"[{hold}]"
        if not gauges or self.place is None or self.place is RACK:
            return self.expr
        before = INSTANT.sub(lambda found: f"last_over_time({found[0]}{span})", self.expr)
        return f"({self.expr}) or ({before}) unless on ({NODE}) {LAST_TICK}"

    def findings(self, machine: Look) -> Iterator[Finding]:
        if self.look:
            seen: Iterable[Seen] = self.look(machine)
        else:
            assert isinstance(self.when, Condition)
            found = ordered(self.when, machine.samples)
            seen = (self._seen(row, value, machine.samples) for row, value in found)
        for gpu, device, figures, names, severity, labels in seen:
            known = severity or Severity(self.severity)
            yield Finding(self.kind, known, gpu, device, figures, names, labels)

    def _seen(self, row: Mapping[str, str], value: float, samples: SampleStore) -> Seen:
        gpu = GpuKey(int(row["gpu"]), row["uuid"]) if row.get("uuid") else None
        names = [row[name] for name in self.names]
        if self.listed and gpu:
            metric, label, wanted = self.listed
            same = of(metric, uuid=gpu.uuid).equals(wanted).rows(samples)
            names += sorted((dict(other)[label] for other in same), key=lambda n: (len(n), n))
        figures: tuple[Figure, ...] = ()
        if self.figure:
            figures = (Figure(self.figure, value, self._limit(row, samples), self.unit),)
        labels = tuple(sorted(row.items()))
        return Seen(gpu, row.get(self.device, ""), figures, tuple(names), labels=labels)

    def _limit(self, row: Mapping[str, str], samples: SampleStore) -> float | None:
        if not isinstance(self.limit, Metric):
            return self.limit
        return samples.value(self.limit, *(row[label] for label in self.limit.labels))


gpu_fault = partial(Fault, place=GPU)
node_fault = partial(Fault, place=MACHINE)


def ordered(when: Condition, samples: SampleStore) -> list[tuple[dict[str, str], float]]:
    """The rows of a condition by the number of their GPU, then by the other labels."""
    rows = [(dict(row), value) for row, value in when.rows(samples).items()]
    return sorted(
        rows, key=lambda found: (int(found[0].get("gpu") or -1), sorted(found[0].items()))
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that the same people act on."""

    name: str
    rules: Sequence[Fault | Recording]
    title: str = ""  # of their part of the runbook
    every: str = ""  # between two evaluations; empty: as Prometheus is configured
