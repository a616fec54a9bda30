"""Comparison of the agent's reports on a load with the load's own clock."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agent.diagnosis import pulses
from agent.model import PAIRS
from tests.hardware.bench import Watcher

SIGNALS = ("gpm", "nvml")
WITHIN = {"gpm": 0.05, "nvml": 0.10}
"""Tolerance of a share, by the signals that the agent could read."""

STEP_WITHIN = 0.01
LOST = ("starved", "hung", "throttled")
HUNG = "hung"
"""Reported after 20 s, 5 s with NCCL's word; seconds before count as waiting for a peer."""

SLACK = 0.03
"""Share of the time by which a true cause may be exceeded and is still the right one."""

Seconds = dict[str, float]


@dataclass(frozen=True, slots=True)
class TrueSpan:
    """One GPU under a load for a while (seconds of the tape, or CLOCK_MONOTONIC), by its clock."""

    load: str
    gpu: int
    since: float
    until: float
    shares: Mapping[str, float]
    step: float | None = None  # usual seconds of a step; None where steps are not regular
    doubts: Mapping[str, Sequence[float]] = field(default_factory=dict)  # a share may be less, more


@dataclass(frozen=True, slots=True)
class Judged:
    """One GPU under one load: true and reported shares by label, and how far they are apart."""

    span: TrueSpan
    signals: str
    shares: Mapping[str, float]
    steps: Sequence[float] = field(default=())  # each tick's step, where one was reported

    @property
    def error(self) -> float:
        """The largest difference of a share."""
        true = self.span.shares
        return max(abs(true.get(n, 0.0) - self.shares.get(n, 0.0)) for n in {*true, *self.shares})

    @property
    def error_beyond_doubt(self) -> float:
        """The largest difference of a share from what it may truly be."""
        true, worst = self.span.shares, 0.0
        for name in {*true, *self.shares}:
            less, more = self.span.doubts.get(name, (0.0, 0.0))
            over = self.shares.get(name, 0.0) - true.get(name, 0.0)
            worst = max(worst, over - more, -over - less)
        return worst

    @property
    def lost(self) -> tuple[float, float]:
        """Seconds reported as lost, and those of them that carry a true cause."""
        lost = {n: s for n, s in self.shares.items() if n.split("/")[0] in LOST}
        right = sum(min(s, self.span.shares.get(n, 0.0) + SLACK) for n, s in lost.items())
        seconds = self.span.until - self.span.since
        return seconds * sum(lost.values()), seconds * right

    @property
    def right_cause(self) -> float | None:
        """Of the time shown as lost the part with a true cause; None where next to none is lost."""
        lost, right = self.lost
        return right / lost if lost > 0.05 * (self.span.until - self.span.since) else None

    @property
    def is_within(self) -> bool:
        return self.error <= WITHIN[self.signals]

    @property
    def step_error(self) -> float | None:
        """Relative error of the last step reported; None where none was."""
        if not self.steps or not self.span.step:
            return None
        return self.steps[-1] / self.span.step - 1.0

    def __str__(self) -> str:
        true = self.span.shares
        labels = sorted({*self.shares, *true}, key=lambda k: -true.get(k, 0.0))
        parts = " ".join(
            f"{label} {true.get(label, 0):.3f}/{self.shares.get(label, 0):.3f}"
            for label in labels
            if max(true.get(label, 0), self.shares.get(label, 0)) >= 0.01
        )
        mark = "   " if self.is_within else "OFF"
        cause = "" if self.right_cause is None else f" cause {self.right_cause:.2f}"
        step = self._step()
        head = f"{self.span.load:26} gpu{self.span.gpu} {self.signals:4} {mark} {self.error:.3f}"
        return f"{head}{cause} | {parts}{step}"

    def _step(self) -> str:
        if self.span.step is None and not self.steps:
            return ""
        true = "none" if self.span.step is None else f"{self.span.step:.4f}"
        shown = f"{self.steps[-1]:.4f}" if self.steps else "none"
        error = "" if self.step_error is None else f" ({self.step_error:+.1%})"
        return f" | step {true} reported {shown}{error} in {len(self.steps)} ticks"


def label(state: str, cause: str) -> str:
    """As the loads' clocks name it: `busy`, `hung`, `starved/disk`."""
    return state if cause == "none" else f"{state}/{cause}"


LABELS = {pair: label(*(part.value for part in pair)) for pair in PAIRS}


def booked(watcher: Watcher) -> dict[int, Seconds]:
    """Seconds by label of every GPU, so far."""
    diagnosis = watcher.agent.diagnosis
    return {
        one.index: {
            LABELS[pair]: seconds
            for pair, seconds in diagnosis.accounts[one.uuid].booked.seconds.items()
        }
        for one in watcher.agent.gpus.inventory.gpus
        if one.uuid in diagnosis.accounts
    }


def shown(
    span: TrueSpan,
    signals: str,
    watcher: Watcher,
    before: Mapping[int, Seconds],
    after: Mapping[int, Seconds],
) -> Judged:
    """Return the shares that an agent counted between two moments, and the steps that it reported
    meanwhile."""
    earlier = before.get(span.gpu, {})
    seconds = {name: s - earlier.get(name, 0.0) for name, s in after[span.gpu].items()}
    total = sum(seconds.values()) or 1.0
    steps = tuple(
        sample.value
        for snapshot in watcher.snapshots
        if span.since <= snapshot.at <= span.until
        for sample in snapshot.readings[pulses.KEY].samples
        if sample.metric is pulses.STEP and sample.labels[0] == str(span.gpu)
    )
    return Judged(span, signals, {n: s / total for n, s in seconds.items() if s}, steps)


def by_label(found: Iterable[Judged]) -> Mapping[str, Sequence[float]]:
    """Return the sum of the shares with each label that were reported, that were true, and that
    were both."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 3)
    for one in found:
        for name in {*one.shares, *one.span.shares}:
            pair = one.shares.get(name, 0.0), one.span.shares.get(name, 0.0)
            sums[name] = [sum(two) for two in zip(sums[name], (*pair, min(pair)), strict=True)]
    return sums


def precision_and_recall(found: Sequence[Judged]) -> Iterator[str]:
    """Yield how far `busy` is off, and a row for each label with its GPU-windows."""
    off = [abs(one.shares.get("busy", 0.0) - one.span.shares.get("busy", 0.0)) for one in found]
    yield f"busy is off by {sum(off) / len(off):.4f} on average; in GPU-windows:"
    for name, (reported, true, both) in sorted(by_label(found).items(), key=lambda row: -row[1][1]):
        parts = (f"{both / whole if whole else 0.0:.2f}" for whole in (reported, true))
        yield f"{name:22} true {true:6.1f} reported {reported:6.1f} " + " ".join(parts)


def summary(found: Iterable[Judged]) -> str:
    """Return a sentence on how many are within their bounds, and how much of the reported loss has
    its cause, and a table with the precision and the recall of each label."""
    lines = []
    kept = list(found)
    for signals in SIGNALS:
        mine = [t for t in kept if t.signals == signals]
        if not mine:
            continue
        five, ten = (sum(t.error <= most for t in mine) for most in sorted(WITHIN.values()))
        doubted = sum(t.error_beyond_doubt <= min(WITHIN.values()) for t in mine)
        lines.append(
            f"{signals}: {five} of {len(mine)} GPUs within 5 % ({doubted} with the doubt of "
            f"the truth), {ten} within 10 %; right cause "
            f"of what was reported as lost: {_right(mine)}, where nothing hangs "
            f"{_right([t for t in mine if HUNG not in t.span.shares])}"
        )
        stepping = [t for t in mine if t.span.step]
        claimed = [t for t in stepping if t.step_error is not None]
        good = sum(abs(t.step_error or 0.0) <= STEP_WITHIN for t in claimed)
        irregular = sum(len(t.steps) for t in mine if t.span.step is None)
        lines.append(
            f"{signals}: steps of {len(claimed)} of {len(stepping)} GPUs reported, {good} within "
            f"{STEP_WITHIN:.0%}; {irregular} ticks with a step where there is none"
        )
        lines += precision_and_recall(mine)
    return "\n".join(lines)


def _right(found: Sequence[Judged]) -> str:
    lost = sum(t.lost[0] for t in found)
    return f"{sum(t.lost[1] for t in found) / lost:.3f} of {lost:.0f} s" if lost else "none"


def write_truth(path: Path, spans: Iterable[TrueSpan]) -> None:
    """The truth of a tape, as `read_truth` reads it."""
    path.write_text(json.dumps([asdict(span) for span in spans], indent=1), encoding="utf-8")


def read_truth(path: Path) -> list[TrueSpan]:
    """Return the truth while a tape was recorded; times are seconds since its first question."""
    return [TrueSpan(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
