"""Counters that NVML gives as field values: many of one GPU in one driver call."""

from collections.abc import Iterable
from typing import NamedTuple

from agent.hardware.device import NvmlDevice, Scope
from agent.model import FINAL, Absent, Metric
from agent.polling.counter_filters import CounterFilters
from agent.polling.reads import ReadOutput


class FieldRow(NamedTuple):
    """One counter: its question, its metric with further labels, the metric's unit in NVML's."""

    question: Scope
    metric: Metric
    labels: tuple[str, ...]
    scale: float = 1.0
    fastest: float | None = None  # highest plausible increase per second, in the metric's unit


class FieldCounters:
    """Reads its rows in their order: the driver answers neighbouring fields of one link at once.

    What is refused is asked again each time: a link that is down may be up at the next read.
    """

    def __init__(self, device: NvmlDevice, rows: Iterable[FieldRow]) -> None:
        self._device = device
        self._rows = tuple(rows)
        self._filters = CounterFilters()
        self.answered = True  # whether the last read got any value

    def read(self, out: ReadOutput) -> None:
        answers = self._device.fields([row.question for row in self._rows])
        self.answered = False
        for row, answer in zip(self._rows, answers, strict=True):
            if isinstance(answer, Absent):
                if answer.reason in FINAL:
                    raise answer
                out.absent(row.metric, answer, *row.labels)
                continue
            self.answered = True
            total = answer * row.scale
            self._filters.add(out, row.metric, total, *row.labels, fastest=row.fastest)
