"""The true shares and steps of a load, from the lines that its clock printed. No PyTorch here."""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.hardware.labelled_loads.labels import BUSY, LABELS, Level


class LabelledSpan(NamedTuple):
    """Seconds of one rank that belong to one label (CLOCK_MONOTONIC, s)."""

    start: float
    end: float
    label: str


@dataclass(slots=True)
class RankTruth:
    """Truth of one rank. `steps` are the ends of its steps (CLOCK_MONOTONIC, s)."""

    rank: int
    gpu: int
    pid: int
    steady: float
    levels: list[Level] = field(default_factory=list)
    spans: list[LabelledSpan] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    open: tuple[float, str] | None = None  # since when everything belongs to which label

    def lengths(self, since: float, until: float) -> list[float]:
        """Lengths of the steps (s) that lie within an interval."""
        within = [end for end in self.steps if since <= end <= until]
        return [later - earlier for earlier, later in itertools.pairwise(within)]

    def shares(self, since: float, until: float) -> dict[str, float]:
        """Shares by label of the part of an interval (s) that is known. They sum to 1.

        Empty where nothing of the interval is known.
        """
        seconds = dict.fromkeys(LABELS, 0.0)
        for start, end, label in self._all_spans(until):
            seconds[label] += max(0.0, min(end, until) - max(start, since))
        known = sum(seconds.values())
        if known <= 0.0:
            return {}
        self._apply_levels(seconds, self.lengths(since, until))
        return {label: s / known for label, s in seconds.items() if s}

    def _all_spans(self, until: float) -> Iterator[LabelledSpan]:
        for span in self.spans:
            end = span.end if self.open is None else min(span.end, self.open[0])
            yield LabelledSpan(span.start, end, span.label)
        if self.open is not None:
            yield LabelledSpan(self.open[0], max(until, self.open[0]), self.open[1])

    def _apply_levels(self, seconds: dict[str, float], lengths: Sequence[float]) -> None:
        """Take from `busy` what the levels say is another label's."""
        if not self.levels or not lengths:
            return
        span = sum(seconds.values())
        others = span - seconds[BUSY]
        busy = statistics.fmean(lengths) * (1 - others / span)  # of a mean step
        for label, without, including in self.levels:
            most = busy if including is None else min(busy, including)
            moved = max(0.0, most - without) / busy * (span - others)
            seconds[BUSY] -= moved
            seconds[label] += moved


def truths(lines: Iterable[Mapping[str, Any]]) -> dict[int, RankTruth]:
    """Return the truth of each rank, by rank."""
    found: dict[int, RankTruth] = {}
    for line in lines:
        event = line.get("event")
        if event == "steady":
            found[line["rank"]] = RankTruth(
                line["rank"],
                line["gpu"],
                line["pid"],
                line["at"],
                [(label, without, including) for label, without, including in line["levels"]],
            )
        elif event == "spans":
            _add_spans(found[line["rank"]], line)
        elif event == "open":
            found[line["rank"]].open = (line["at"], line["label"])
    return found


def _add_spans(truth: RankTruth, line: Mapping[str, Any]) -> None:
    at = line["since"]
    truth.open = None
    ends = set(line["steps"])
    for place, (label, microseconds) in enumerate(line["spans"]):
        start, at = at, at + microseconds / 1e6
        truth.spans.append(LabelledSpan(start, at, LABELS[label]))
        if place in ends:
            truth.steps.append(at)
