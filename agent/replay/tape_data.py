"""Content of a tape that was read: series of answers, sample buffers, events; and its checks."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import sub
from typing import NamedTuple, TypeGuard

import pynvml

from agent.replay.answers import CALLS, FABRIC, FIELDS, GPM, WIDEST, Json, decode, is_refusal

LONGEST = 10 * 366 * 86400  # Seconds: ten years


@dataclass(slots=True)
class AnswerSeries:
    """Every answer to one question, with the time (ms) from which it holds."""

    times: list[int] = field(default_factory=list)
    answers: list[Json] = field(default_factory=list)

    def at(self, now: int) -> Json:
        """The latest answer; before the first, the first."""
        return self.answers[max(0, bisect_right(self.times, now) - 1)]


@dataclass(slots=True)
class TapedBuffer:
    """One sample buffer: when each sample was taped (ms), its timestamp (us) and value."""

    kind: int = 0
    taped: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    values: list[int | float] = field(default_factory=list)
    _delay: int | None = None  # us from a sample's timestamp to when the driver had it, on the tape

    def extend(self, at: int, kind: int, stamps: list[int], values: list[int | float]) -> None:
        """One batch, taped at `at`; raises ValueError where it is older than what is there."""
        if any(later < earlier for earlier, later in pairwise([*self.stamps[-1:], *stamps])):
            raise ValueError("samples are not in the order of time")
        self.kind, self._delay = kind, None
        self.taped += [at] * len(stamps)
        self.stamps += stamps
        self.values += values

    def newer(self, last_seen: int, now: int) -> list[tuple[int, int | float]]:
        """Samples after `last_seen` that the driver had by `now`, also where no one asked for them
        until later: how often a reading comes is not the tape's to say."""
        if self._delay is None:
            self._delay = min(map(sub, (at * 1000 for at in self.taped), self.stamps), default=0)
        had = bisect_right(self.stamps, now * 1000 - self._delay)
        window = slice(bisect_right(self.stamps, last_seen), had)
        return list(zip(self.stamps[window], self.values[window], strict=True))


class TapedEvent(NamedTuple):
    """One event of the driver: when (ms), on which GPU, what."""

    at: int
    gpu: int
    parts: tuple[int, ...]


def is_count(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < WIDEST


def is_number(value: Json) -> TypeGuard[int | float]:
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < WIDEST
    )


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def fits_union(value: Json, kind: int) -> TypeGuard[int | float]:
    """Return whether this is a value of that type: fractions are for doubles."""
    return is_number(value) and (kind == pynvml.NVML_VALUE_TYPE_DOUBLE or isinstance(value, int))


NVML_REFUSALS = frozenset({"error", "mismatch"})
HOST_REFUSALS = frozenset({"errno"})
ANSWERS: tuple[tuple[str, tuple[type, ...], frozenset[str]], ...] = (
    ("read ", (str,), HOST_REFUSALS),
    ("link ", (str,), HOST_REFUSALS),
    ("names ", (list,), HOST_REFUSALS),
    (FABRIC, (dict,), NVML_REFUSALS),
    ("nvml", (object,), NVML_REFUSALS),
    ("", (dict, type(None)), HOST_REFUSALS),
)
"""By the start of a question: what answers it, and what refuses it. The last row is psutil's."""


def _fault(key: str, answer: Json, expected: str) -> ValueError:
    return ValueError(f"{key!r:.60} is {answer!r:.60}, expected {expected}")


def _check_call(key: str, answer: Json) -> None:
    _, kinds, refusals = next(row for row in ANSWERS if key.startswith(row[0]))
    if is_refusal(answer):
        if not refusals & answer.keys():
            raise _fault(key, answer, f"one of {sorted(refusals)}")
        return
    if not isinstance(answer, kinds):
        raise _fault(key, answer, " or ".join(kind.__name__ for kind in kinds))
    decode(answer)


def _check_refused(key: str, entry: Json, expected: str) -> None:
    """An entry without a value: the code that stood in it, or that of the whole call."""
    alone = isinstance(entry, list) and len(entry) == 1 and is_count(entry[0])
    if not (alone or (is_refusal(entry) and NVML_REFUSALS & entry.keys())):
        raise _fault(key, entry, expected)


def _check_field(key: str, entry: Json) -> None:
    match entry:
        case [0, int(kind), value] if is_count(kind) and fits_union(value, kind):
            return
    _check_refused(key, entry, "[0, type, value] or a refusal")


def _check_metric(key: str, entry: Json) -> None:
    match entry:
        case [0, value] if value is None or is_number(value):
            return
    _check_refused(key, entry, "[0, value] or a refusal")


CHECKS: dict[str, Callable[[str, Json], None]] = {
    CALLS: _check_call,
    FIELDS: _check_field,
    GPM: _check_metric,
}
"""Checks of the sections of a frame; samples and events are checked when they are unpacked."""
