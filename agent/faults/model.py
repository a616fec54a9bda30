"""A fault: one declaration, the source of `check`, the page, rules, inhibitions and runbook."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple

from agent.faults.places import GPU, Place
from agent.faults.places import NODE as MACHINE
from agent.faults.promql import Condition, Recording, of
from agent.faults.windows import Ask, FaultSamples
from agent.model import Absence, Figure, Finding, GpuKey, Metric, Severity, Snapshot, State
from agent.specs.sheets import SystemSpec

PAGES = Path(__file__).parent / "pages"
"""The runbook: a Markdown file for each alert, named after it."""

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


def alert_names() -> frozenset[str]:
    """The names of all alerts: each has its page."""
    return frozenset(path.stem for path in PAGES.glob("Dgx*.md"))


@dataclass(frozen=True)
class Look:
    """Input of the search for faults."""

    samples: FaultSamples
    snapshot: Snapshot
    spec: SystemSpec | None

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


class Listed(NamedTuple):
    """Names that the sentence of a finding lists: a label of each series of the metric, on the same
    GPU, that has this value."""

    metric: Metric
    label: str
    value: float


SAME_NODE = ("cluster", "instance")
SAME_GPU, SAME_DEVICE = (*SAME_NODE, "uuid"), (*SAME_NODE, "device")
SAME_PORT = (*SAME_DEVICE, "port")


class HiddenBy(NamedTuple):
    """An alert that holds this alert back if both have the `same` labels; matchers narrow either
    side down: `having` the hiding alert, `only` the hidden alert."""

    alert: str
    same: tuple[str, ...]
    having: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


Action = str | Callable[[Finding], str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fault:
    """A fault: a finding of `check` and the page if it has a `kind`, an alert if it has an `alert`
    and `when`; several faults of the same alert differ in their `labels`.

    `when` is a condition for both. A finding that PromQL does not have, or has as several rules,
    has `look` instead, which `reads` these metrics, or everything.
    """

    severity: Severity | Literal["none"] = WARNING
    kind: str = ""
    alert: str = ""
    place: Place | None = None  # None: no place in particular
    when: Condition | str = ""
    look: Callable[[Look], Iterable[Seen]] | None = None
    reads: frozenset[Ask] = frozenset()
    hold: str = "0s"  # for how long `when` holds before it alerts, as Prometheus writes it
    fires: Callable[[Finding], str] | None = None  # the hold, if it differs by finding
    labels: Mapping[str, str] = field(default_factory=dict)
    sentence: Sequence[str] = ()  # its parts; a part is left out if a figure of it is not known
    summary: str = ""  # of the alert, in a few words
    figure: str = ""  # the name of its value in the sentence
    words: Mapping[int, str] = field(default_factory=dict)  # `{word}` of the sentence, by its value
    unit: str = "count"
    limit: Metric | float | None = None
    device: str = ""  # the label that names its device
    names: tuple[str, ...] = ()  # labels that the sentence asks for by number; ids have them
    listed: Listed | None = None
    terms: Mapping[str, Callable[[Finding], str]] = field(default_factory=dict)  # of findings alone
    do: Action = ""  # the first step
    state: State | None = None  # of GPUs, that it is about
    hidden_by: tuple[HiddenBy, ...] = ()

    @property
    def expr(self) -> str:
        return str(self.when)

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

    def _seen(self, row: Mapping[str, str], value: float, samples: FaultSamples) -> Seen:
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

    def _limit(self, row: Mapping[str, str], samples: FaultSamples) -> float | None:
        if not isinstance(self.limit, Metric):
            return self.limit
        return samples.value(self.limit, *(row[label] for label in self.limit.labels))


gpu_fault = partial(Fault, place=GPU)
node_fault = partial(Fault, place=MACHINE)


def ordered(when: Condition, samples: FaultSamples) -> list[tuple[dict[str, str], float]]:
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
    every: str = "15s"  # between two evaluations
