"""The declaration of a fault. It is used for `check`, the page, rules, inhibitions, and the
runbook. `declarations.py` reads the declarations from the files in `subjects/`."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from agent.catalogue import METRICS
from agent.faults.conditions import Condition
from agent.faults.promql import Recording
from agent.faults.windows import FaultSamples
from agent.limits.topology import StrayLinks, WrongPair, wiring
from agent.model import Absence, Figure, GpuKey, Severity, Snapshot, State
from agent.series import SampleStore
from agent.specs.sheets import SystemSpec

PAGES = Path(__file__).parent / "pages"
"""The directory of the runbook. It contains a Markdown file per alert, named after the alert."""

NEVER = "never"
"""Value of `hold` in the declaration of a finding that never fires its alert."""


def alert_names() -> frozenset[str]:
    """Return the names of all alerts. Each alert has a runbook page."""
    return frozenset(path.stem for path in PAGES.glob("Dgx*.md"))


@dataclass(frozen=True)
class Look:
    """The data that a check for faults uses."""

    windows: FaultSamples
    snapshot: Snapshot
    spec: SystemSpec | None
    faults: Mapping[str, "Fault"]  # by kind

    @property
    def samples(self) -> SampleStore:
        return self.windows.store

    def has(self, kind: str) -> bool:
        """Return whether a fault of this kind is present, judging by its condition."""
        return bool(self.faults[kind].rows(self.windows))

    @cached_property
    def wiring(self) -> list[StrayLinks] | list[WrongPair]:
        """The differences between the detected NVLinks and those in the spec sheet."""
        return wiring(self.samples, self.spec)

    @cached_property
    def absences(self) -> tuple[Absence, ...]:
        """All values that are currently absent."""
        return tuple(self.snapshot.absences(self.snapshot.at))


class Seen(NamedTuple):
    """A fault found in a check. If `severity` is None, the severity is that of the declaration."""

    gpu: GpuKey | None = None
    device: str = ""
    figures: tuple[Figure, ...] = ()
    names: tuple[str, ...] = ()
    severity: Severity | None = None
    labels: tuple[tuple[str, str], ...] = ()


class HiddenBy(NamedTuple):
    """An alert that inhibits the declared alert if the labels in `same` are equal. The inhibiting
    alert must match the matchers in `having`, and the declared alert those in `only`."""

    alert: str
    same: tuple[str, ...]
    having: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @classmethod
    def parsed(cls, text: str) -> "HiddenBy":
        """Parse a string such as `DgxGpuXid{severity="critical"} on (uuid) only {xid="48"}`."""
        found = re.fullmatch(r"(\w+)(?:\{(.*?)\})? on \(([\w, ]+)\)(?: only \{(.*)\})?", text)
        assert found, text
        alert, having, same, only = (part or "" for part in found.groups())
        split = (tuple(filter(None, part.split(", "))) for part in (same, having, only))
        return cls(alert, *split)


class FaultTable(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False, dict=True
):
    """Base class for tables in a declaration file."""


class Listed(FaultTable, frozen=True, kw_only=True):
    """Names that the sentence of a finding lists: the values of the label `label` in all series of
    `metric` on the same GPU with the value `value`."""

    metric: str
    label: str
    value: float


class FindingPart(FaultTable, frozen=True, kw_only=True):
    """The part of a declaration about the finding for `check` and the page. A function is named
    with its module in `agent/faults`, for example `gpus.silent`."""

    kind: str
    when: str = ""  # if different from the rule's condition
    look: str = ""  # function that finds the fault, possibly with the condition's rows
    bound: float = 0.0  # threshold used by `look`
    metrics: str = ""  # regular expression for the metrics that `look` checks
    do: str = ""  # function that returns the first step
    hold: str = ""  # function that returns the hold of the alert
    terms: dict[str, str] = {}  # functions that return parts of the sentence
    listed: Listed | None = None
    adds: str = ""  # text that it adds to the finding that hides it


class RulePart(FaultTable, frozen=True, kw_only=True):
    """The part of a declaration about the alerting rule."""

    summary: str  # short description
    when: str = ""  # if different from the finding's condition
    hidden_by: tuple[str, ...] = ()


class Fault(FaultTable, frozen=True, kw_only=True):
    """A fault: a condition with a finding, an alerting rule, or both. If several faults have the
    same alert, their `labels` differ."""

    alert: str = ""
    severity: Literal["critical", "warning", "info", "none"] = "warning"
    place: str = ""  # key of `PLACES` in alerts/templates.py, or empty
    when: str = ""
    hold: str = "0s"  # `for` of the rule, as a Prometheus duration
    labels: dict[str, str] = {}
    sentence: tuple[str, ...] = ()  # parts; a part is omitted if it has an unknown figure
    figure: str = ""  # name of the value in the sentence
    words: dict[str, str] = {}  # text for `{word}`, by the first name or by the value
    limit: float | None = None
    limit_of: str = ""  # metric with the limit, matched by the row's labels
    device: str = ""  # label with the name of the device
    names: tuple[str, ...] = ()  # labels that the sentence uses by index; part of the ID
    do: str = ""  # first step
    can_wait: bool = False  # nothing is lost by waiting, so other faults come first
    state: State | None = None  # GPU state that the fault describes
    group: str = ""  # rule group; empty for the group of the file
    finding: FindingPart | None = None
    rule: RulePart | None = None
    condition: Any = None  # parsed condition of the finding (Condition | None)

    @property
    def kind(self) -> str:
        return self.finding.kind if self.finding else ""

    @property
    def bound(self) -> float:
        return self.finding.bound if self.finding else 0.0

    @property
    def expr(self) -> str:
        return (self.rule.when if self.rule else "") or self.when

    @property
    def hiders(self) -> tuple[HiddenBy, ...]:
        return tuple(map(HiddenBy.parsed, self.rule.hidden_by if self.rule else ()))

    def findings(self, machine: Look) -> Iterator["Finding"]:
        assert self.finding
        if self.finding.look:
            seen: Iterable[Seen] = function(self.finding.look)(machine, self)
        else:
            found = self.rows(machine.windows)
            seen = (self._seen(row, value, machine.samples) for row, value in found)
        for gpu, device, figures, names, severity, labels in seen:
            known = severity or Severity(self.severity)
            yield Finding(self, known, gpu, device, figures, names, labels)

    def rows(self, samples: FaultSamples) -> list[tuple[dict[str, str], float]]:
        """Return the condition's rows (labels and value), sorted by GPU index and labels."""
        condition: Condition = self.condition
        rows = [(dict(row), value) for row, value in condition.rows(samples).items()]
        return sorted(rows, key=lambda one: (int(one[0].get("gpu") or -1), sorted(one[0].items())))

    def _seen(self, row: Mapping[str, str], value: float, samples: SampleStore) -> Seen:
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
            figures = (Figure(self.figure, value, self._limit(row, samples)),)
        labels = tuple(sorted(row.items()))
        return Seen(gpu, row.get(self.device, ""), figures, tuple(names), labels=labels)

    def _limit(self, row: Mapping[str, str], samples: SampleStore) -> float | None:
        if not self.limit_of:
            return self.limit
        metric = METRICS[self.limit_of]
        return samples.value(metric, *(row[label] for label in metric.labels))


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the machine. `fault` is its declaration, with the thresholds that apply. `device`
    is the faulty port, link, array, or source. It is empty if the fault affects the whole GPU or
    machine. `labels` contains further labels of the alert."""

    fault: Fault
    severity: Severity
    gpu: GpuKey | None = None
    device: str = ""
    figures: tuple[Figure, ...] = ()
    names: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def kind(self) -> str:
        return self.fault.kind

    @property
    def id(self) -> str:
        """The ID. It consists of the kind, the GPU, the device, and other labels that identify the
        fault, such as a port."""
        own = self.names[: len(self.fault.names)]
        place = self.kind, self.gpu.uuid if self.gpu else "", self.device, *own
        return ":".join(filter(None, place))


def function(name: str) -> Callable[..., Any]:
    """Return the function with this name in a declaration, for example `gpus.silent`."""
    module, _, own = name.partition(".")
    found: Callable[..., Any] = getattr(import_module(f"agent.faults.{module}"), own)
    return found


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule group in `groups.toml`, with the files in `subjects/` that contain its rules."""

    name: str
    files: tuple[str, ...]
    title: str = ""  # heading in the runbook
    every: str = "15s"  # evaluation interval
    records: Sequence[Recording] = ()
    faults: Sequence[Fault] = ()
