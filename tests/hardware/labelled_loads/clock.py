"""The clock of a load: divides the time of one rank into labelled spans and steps.

On a GPU the spans are measured by events on its stream, so that work which the host launched ahead
counts when it runs, and not when it was launched. Without one they are the host's.

A rank prints lines of JSON, all with `at` (CLOCK_MONOTONIC, s), `rank`, `gpu`, `pid`, `event`:
- `steady`: the steady phase begins; `levels` as in `labels.Level`.
- `spans`: `since` (s), then `spans`: pairs of a label's place in LABELS and its length in us, end
  to end, and `steps`: the places in `spans` after which a step ended.
- `open`: from now on everything belongs to `label`, until the next `spans`.
- `total`: since `steady`: `seconds` by label, `steps`, mean `step_seconds`.
"""

import json
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.hardware.device import DEVICE, EVERY, synchronize
from tests.hardware.labelled_loads.labels import LABELS, Level

SPANS_A_LINE = 150
"""A line stays below 4 KiB: ranks share a pipe, which takes no more at once."""


@dataclass(slots=True)
class _Mark:
    """The end of a span, which may lie in the GPU's future."""

    event: Any  # a CUDA event; without a GPU s on the host's clock
    label: int
    ends_step: bool = False


class ShareClock:
    """Clock that divides the time of one rank. Call `begin` once, then `mark` after each phase."""

    def __init__(
        self, seconds: float, rank: int = 0, gpu: int | None = None, *, on_gpu: bool | None = None
    ) -> None:
        """`seconds` of the steady phase; `gpu` is the driver's index, by default the rank's."""
        self._seconds = seconds
        self._rank = rank
        self._gpu = rank + int(os.environ.get("DGX_LOAD_FIRST_GPU", "0")) if gpu is None else gpu
        self._on_gpu = DEVICE == "cuda" if on_gpu is None else on_gpu
        self._pending: deque[_Mark] = deque()
        self._ends: deque[Any] = deque()  # of the last two steps
        self._spans: list[tuple[int, int]] = []
        self._steps: list[int] = []
        self._totals = dict.fromkeys(LABELS, 0.0)
        self._done = 0
        self._since = 0.0

    def begin(self, levels: Sequence[Level] = ()) -> None:
        """The steady phase begins. `levels` were measured before, by the same rank."""
        self._wait()
        self._start = self._since = self._reported = self._at = time.monotonic()
        self._last = self._now()
        self._say("steady", levels=[list(level) for level in levels])

    def going(self) -> bool:
        """Return whether to go on. Only the first rank ends: the others are ended with it."""
        return self._rank > 0 or time.monotonic() - self._start < self._seconds

    def mark(self, label: str) -> None:
        """Assign the time on the current stream since the last mark to this label."""
        self._pending.append(_Mark(self._now(), LABELS.index(label)))

    def step(self) -> None:
        """A step ended with the last mark. Keeps the host from running ahead by more than two."""
        last = self._pending[-1]
        last.ends_step = True
        self._ends.append(last.event)
        if len(self._ends) > 2:
            oldest = self._ends.popleft()
            if self._on_gpu:
                oldest.synchronize()
        self.report()

    def open(self, label: str) -> None:
        """From now on (the host's now) everything belongs to this label, until the next mark."""
        self._wait()
        self.report(at_once=True)
        self._say("open", label=label)

    def report(self, *, at_once: bool = False) -> None:
        """Print what is known by now, not too often unless `at_once`."""
        self._resolve()
        if not at_once and time.monotonic() - self._reported < EVERY:
            return
        self._reported = time.monotonic()
        for start in range(0, len(self._spans), SPANS_A_LINE):
            piece = self._spans[start : start + SPANS_A_LINE]
            steps = [s - start for s in self._steps if 0 <= s - start < SPANS_A_LINE]
            self._say("spans", since=round(self._since, 6), spans=piece, steps=steps)
            self._since += sum(length for _, length in piece) / 1e6
        self._spans, self._steps, self._since = [], [], self._at
        seconds = {label: round(s, 6) for label, s in self._totals.items() if s}
        mean = (self._at - self._start) / self._done if self._done else None
        self._say("total", seconds=seconds, steps=self._done, step_seconds=mean)

    def _wait(self) -> None:
        if self._on_gpu:  # else the GPU may be another library's
            synchronize()

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _resolve(self) -> None:
        while self._pending and (not self._on_gpu or self._pending[0].event.query()):
            mark = self._pending.popleft()
            if self._on_gpu:
                length = self._last.elapsed_time(mark.event) / 1e3
            else:
                length = mark.event - self._last
            self._last = mark.event
            self._at += length
            self._totals[LABELS[mark.label]] += length
            if mark.ends_step:
                self._steps.append(len(self._spans))
                self._done += 1
            self._spans.append((mark.label, round(length * 1e6)))

    def _say(self, event: str, **facts: Any) -> None:
        who = {"rank": self._rank, "gpu": self._gpu, "pid": os.getpid()}
        line = {"at": round(time.monotonic(), 6), "event": event, **who, **facts}
        os.write(1, (json.dumps(line) + "\n").encode())  # in one piece: ranks share the output
