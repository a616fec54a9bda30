"""Values that NVML gives by field id: many of one GPU in one driver call."""

from collections.abc import Iterable
from typing import NamedTuple

from agent.hardware.device import NvmlDevice, Scope
from agent.model import FINAL, Absent, Metric
from agent.polling.reads import ReadOutput


class FieldRow(NamedTuple):
    """One value: its question, its metric with further labels, the metric's unit in NVML's."""

    question: Scope
    metric: Metric
    labels: tuple[str, ...]
    scale: float = 1.0


class FieldRows:
    """Reads its rows in their order: the driver answers neighbouring fields of one link at once.

    What is refused is asked again each time: a link that is down may be up at the next read.
    """

    def __init__(self, device: NvmlDevice, rows: Iterable[FieldRow]) -> None:
        self._device = device
        self._rows = tuple(rows)
        self.answered = True  # whether the last read got any value

    def read(self, out: ReadOutput) -> None:
        answers = self._device.fields([row.question for row in self._rows])
        self.answered = False
        for row, answer in zip(self._rows, answers, strict=True):
            if isinstance(answer, Absent):
                if answer.reason in FINAL:
                    raise answer
                out.absent(row.metric, answer, *row.labels)
            else:
                self.answered = True
                out.add(row.metric, answer * row.scale, *row.labels)
