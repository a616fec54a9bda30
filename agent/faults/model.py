"""A fault: one declaration, the source of `check`, the page, rules, inhibitions and runbook. The
declarations are the files of `subjects/`; `declarations.py` reads them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from agent.catalogue import METRICS
from agent.faults.conditions import Condition
from agent.faults.promql import Recording
from agent.faults.windows import ABSENCES, Ask, FaultSamples
from agent.model import Absence, Figure, Finding, GpuKey, Severity, Snapshot, State
from agent.specs.sheets import SystemSpec

PAGES = Path(__file__).parent / "pages"
"""The runbook: a Markdown file for each alert, named after it."""

NEVER = "never"
"""Hold of a finding without an alert of its own."""


def alert_names() -> frozenset[str]:
    """The names of all alerts: each has its page."""
    return frozenset(path.stem for path in PAGES.glob("Dgx*.md"))


@dataclass(frozen=True)
class Look:
    """Input of the search for faults."""

    samples: FaultSamples
    snapshot: Snapshot
    spec: SystemSpec | None
    faults: Mapping[str, "Fault"]  # by kind

    def has(self, kind: str) -> bool:
        """Return whether the condition of another finding holds."""
        return bool(self.faults[kind].rows(self.samples))

    @cached_property
    def absences(self) -> tuple[Absence, ...]:
        """All values that are absent now."""
        return tuple(self.snapshot.absences(self.snapshot.at))


class Seen(NamedTuple):
    """An instance of a fault; `severity` if it differs from case to case."""

    gpu: GpuKey | None = None
    device: str = ""
    figures: tuple[Figure, ...] = ()
    names: tuple[str, ...] = ()
    severity: Severity | None = None
    labels: tuple[tuple[str, str], ...] = ()


class HiddenBy(NamedTuple):
    """An alert that holds this alert back if both have the `same` labels; matchers narrow either
    side down: `having` the hiding alert, `only` the hidden alert."""

    alert: str
    same: tuple[str, ...]
    having: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @classmethod
    def parsed(cls, text: str) -> "HiddenBy":
        """As `DgxGpuXid{severity="critical"} on (cluster, instance, uuid) only {xid="48"}`."""
        found = HIDING.fullmatch(text)
        assert found, text
        alert, having, same, only = (part or "" for part in found.groups())
        split = (tuple(filter(None, part.split(", "))) for part in (same, having, only))
        return cls(alert, *split)


HIDING = re.compile(r"(\w+)(?:\{(.*?)\})? on \(([\w, ]+)\)(?: only \{(.*)\})?")


class FaultTable(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False, dict=True
):
    """A table of a file of declarations."""


class Listed(FaultTable, frozen=True, kw_only=True):
    """Names for the sentence of a finding: a label of each series of the metric that has this
    value, on the same GPU."""

    metric: str
    label: str
    value: float


class FindingPart(FaultTable, frozen=True, kw_only=True):
    """The fault as a finding of `check` and the page. Functions are named as `gpus.silent`, of
    `agent/faults/gpus.py`."""

    kind: str
    when: str = ""  # if its condition is another than the rule's
    look: str = ""  # function that finds it; it may use the rows of the condition
    reads: tuple[str, ...] = ()  # metrics that `look` reads, or `absences`; none: everything
    ages: bool = False  # the time alone changes or ends it, and never begins it
    bound: float = 0.0  # number that `look` compares with
    metrics: str = ""  # pattern of the names of metrics that `look` asks for
    do: str = ""  # function for the first step
    hold: str = ""  # function for the hold of its alert
    terms: dict[str, str] = {}  # functions for terms of the sentence
    listed: Listed | None = None


class RulePart(FaultTable, frozen=True, kw_only=True):
    """The fault as a rule of its alert."""

    summary: str  # in a few words
    when: str = ""  # if its condition is another than the finding's
    hidden_by: tuple[str, ...] = ()

    @property
    def hiders(self) -> tuple[HiddenBy, ...]:
        return tuple(map(HiddenBy.parsed, self.hidden_by))


class Fault(FaultTable, frozen=True, kw_only=True):
    """A fault: a condition, and a finding, a rule or both over it. Several faults of the same alert
    differ in their `labels`."""

    alert: str = ""
    severity: Literal["critical", "warning", "info", "none"] = "warning"
    place: str = ""  # a name of `places.py`; empty: no place in particular
    when: str = ""
    hold: str = "0s"  # for how long `when` holds before it alerts, as Prometheus writes it
    labels: dict[str, str] = {}
    sentence: tuple[str, ...] = ()  # its parts; a part is left out if a figure is not known
    figure: str = ""  # the name of its value in the sentence
    words: dict[str, str] = {}  # `{word}` of the sentence, by the first name or else the value
    unit: str = "count"
    limit: float | None = None
    limit_of: str = ""  # metric of the limit, with labels of the row
    device: str = ""  # the label that names its device
    names: tuple[str, ...] = ()  # labels that the sentence asks for by number; ids have them
    do: str = ""  # the first step
    state: State | None = None  # of GPUs, that it is about
    group: str = ""  # of its rule; empty: of its file
    finding: FindingPart | None = None
    rule: RulePart | None = None
    condition: Any = None  # Condition | None: of its finding, parsed

    @property
    def kind(self) -> str:
        return self.finding.kind if self.finding else ""

    @property
    def expr(self) -> str:
        return (self.rule.when if self.rule else "") or self.when

    @cached_property
    def asks(self) -> frozenset[Ask]:
        """The inputs of its finding; empty for everything."""
        assert self.finding
        asks: frozenset[Ask] = self.condition.asks if self.condition else frozenset()
        reads = self.finding.reads
        return asks.union(ABSENCES if one == "absences" else Ask(METRICS[one]) for one in reads)

    @property
    def ages(self) -> bool:
        return self.finding is not None and self.finding.ages

    def findings(self, machine: Look) -> Iterator[Finding]:
        assert self.finding
        if self.finding.look:
            seen: Iterable[Seen] = function(self.finding.look)(machine, self)
        else:
            found = self.rows(machine.samples)
            seen = (self._seen(row, value, machine.samples) for row, value in found)
        for gpu, device, figures, names, severity, labels in seen:
            known = severity or Severity(self.severity)
            yield Finding(self.kind, known, gpu, device, figures, names, labels)

    def rows(self, samples: FaultSamples) -> list[tuple[dict[str, str], float]]:
        """The rows of the condition by the number of their GPU, then by the other labels."""
        condition: Condition = self.condition
        rows = [(dict(row), value) for row, value in condition.rows(samples).items()]
        return sorted(
            rows, key=lambda found: (int(found[0].get("gpu") or -1), sorted(found[0].items()))
        )

    def _seen(self, row: Mapping[str, str], value: float, samples: FaultSamples) -> Seen:
        gpu = GpuKey(int(row["gpu"]), row["uuid"]) if row.get("uuid") else None
        names = [row.get(name, "") for name in self.names]
        listed = self.finding.listed if self.finding else None
        if listed and gpu:
            same = samples.where(METRICS[listed.metric], uuid=gpu.uuid)
            place = METRICS[listed.metric].labels.index(listed.label)
            found = (labels[place] for labels, state in same.items() if state == listed.value)
            names += sorted(found, key=lambda name: (len(name), name))
        figures: tuple[Figure, ...] = ()
        if self.figure:
            figures = (Figure(self.figure, value, self._limit(row, samples), self.unit),)
        labels = tuple(sorted(row.items()))
        return Seen(gpu, row.get(self.device, ""), figures, tuple(names), labels=labels)

    def _limit(self, row: Mapping[str, str], samples: FaultSamples) -> float | None:
        if not self.limit_of:
            return self.limit
        metric = METRICS[self.limit_of]
        return samples.value(metric, *(row[label] for label in metric.labels))


def function(name: str) -> Callable[..., Any]:
    """Return the function that a declaration names, as `gpus.silent`."""
    module, _, own = name.partition(".")
    found: Callable[..., Any] = getattr(import_module(f"agent.faults.{module}"), own)
    return found


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that the same people act on."""

    name: str
    rules: Sequence[Fault | Recording]
    title: str = ""  # of their part of the runbook
    every: str = "15s"  # between two evaluations
