"""History of the last 15 minutes, in ring buffers of fixed size. A ring buffer has a slot for each
second of the agent's clock."""

from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

from agent.diagnosis.accounting import LONGEST
from agent.diagnosis.advice import SUMMARIES
from agent.diagnosis.state_seconds import LEADER_WINDOW
from agent.model import PAIRS, Metric, Pair, Snapshot
from agent.polling.gpu_state import GpuInventory
from agent.series import SampleStore
from agent.sources import activity, memory, power, temperature
from agent.status.words import pair_name

SPAN = 900
"""Number of slots, one per second."""

STANDS = int(LONGEST)
"""If there was no tick for up to this many seconds, the values of the next tick are also stored for
these seconds. Longer gaps remain empty."""

MOST_GPUS = 128
"""Maximum number of GPUs for which a history is kept."""


class HistorySeries(NamedTuple):
    """Values stored as the integers `value / scale`. The largest integer (`gap`) marks a gap."""

    name: str
    unit: str
    scale: float
    typecode: str  # B (1 byte) or H (2 bytes)
    gap: int
    metric: Metric | None = None
    seconds: float = 0.0  # averaging window of the value

    def code(self, value: float | None) -> int:
        """Return the integer for a value. A value outside the range becomes the nearest limit."""
        if value is None:
            return self.gap
        code = int(value / self.scale + 0.5)
        return code if 0 <= code < self.gap else self.gap - 1 if code > 0 else 0

    def document(self) -> dict[str, Any]:
        size = array(self.typecode).itemsize
        return {"unit": self.unit, "scale": self.scale, "bytes": size, "gap": self.gap}


SETTLED = 10.0
"""Seconds over which values that fluctuate within every training step are averaged."""

BYTE, TWO_BYTES = ("B", 0xFF), ("H", 0xFFFF)
SERIES = (
    HistorySeries("activity", "ratio", 1 / 200, *BYTE, activity.ACTIVITY),
    HistorySeries("memory", "bytes", float(1 << 24), *TWO_BYTES, memory.USED),
    HistorySeries("power", "watts", 0.1, *TWO_BYTES, power.POWER, SETTLED),
    HistorySeries("temperature", "celsius", 1.0, *BYTE, temperature.TEMPERATURE),
)
SHARE, LAST = HistorySeries("share", "ratio", 1 / 200, *BYTE), int(LEADER_WINDOW)
"""Time share of a state and cause in the LAST seconds. All are 0 while the state is unknown."""

BESIDE, COSTS = 0.06, 0.25
"""BESIDE: least share of recent time that a loss must have to be shown. For communication, which
takes a few per cent of the time in healthy jobs, it is twice as high. COSTS: if a GPU loses at
least this share of its time to low clocks, its state is `throttled`."""

LARGE = {BESIDE: SPAN, COSTS: STANDS}
"""Longest gap, in seconds, in the time for which a share is at least this large."""

STATES = {pair: code for code, pair in enumerate(PAIRS, 1)}
"""Integer code of each state and cause. Code 0 marks a gap."""
LOST = len(PAIRS) + 1
"""Code that marks a GPU that no longer responds."""


@dataclass(slots=True)
class ValueHistory:
    """Recent values of a GPU for the page's charts, with a slot for each second."""

    states: "array[int]" = field(default_factory=lambda: array("B", bytes(SPAN)))
    rings: "tuple[array[int], ...]" = field(
        default_factory=lambda: tuple(array(one.typecode, [one.gap]) * SPAN for one in SERIES)
    )
    shares: "dict[Pair, array[int]]" = field(default_factory=dict)  # pairs with a share above 0
    large: dict[tuple[Pair, float], tuple[int, int]] = field(default_factory=dict)
    """First and last second with at least such a share of a pair (`LARGE`)."""

    seen: int = 0  # last second that had values
    judged: int = 0  # last second with a known state

    def put(
        self,
        slots: Iterable[int],
        state: int,
        codes: Sequence[int],
        shares: Mapping[Pair, float] = MappingProxyType({}),
    ) -> None:
        """Write a tick's values to all `slots`: a late tick also fills those of missed seconds."""
        for pair in shares.keys() - self.shares.keys():
            self.shares[pair] = array("B", bytes(SPAN))
        parts = [(ring, SHARE.code(shares.get(pair, 0.0))) for pair, ring in self.shares.items()]
        for slot in slots:
            self.states[slot] = state
            for ring, code in zip(self.rings, codes, strict=True):
                ring[slot] = code
            for ring, code in parts:
                ring[slot] = code

    def window(self, newest: int, seconds: int = SPAN) -> tuple[dict[Pair, float], int]:
        """Return the mean time share of each state and cause in the `seconds` seconds up to
        `newest`, and the number of these seconds for which the state is known. A stored share is
        that of ten seconds, so every tenth is added up, for whole tens of seconds."""
        last = min(SPAN, seconds)
        states = _ordered(self.states, newest, last).tobytes()  # counted faster than an array
        known = len(states) - states.count(0) - states.count(LOST)
        tens = slice(None, -max(LAST, last // LAST * LAST) - 1, -LAST)
        many = sum(code not in (0, LOST) for code in states[tens])
        sums = ((p, sum(_ordered(r, newest, last)[tens])) for p, r in self.shares.items())
        return {p: SHARE.scale * whole / many for p, whole in sums if whole and many}, known

    def note(self, second: int, shares: Mapping[Pair, float]) -> None:
        """Note since when each share is large. These times are kept beyond the ring buffers."""
        self.judged = second
        for (least, gap), (pair, share) in product(LARGE.items(), shares.items()):
            if share >= least:
                first, last = self.large.get((pair, least), (second, second))
                self.large[pair, least] = (first if second - last <= gap else second, second)


def _ordered(ring: "array[int]", newest: int, last: int = SPAN) -> "array[int]":
    """Return the `last` integers of a ring buffer that end with second `newest`, oldest first."""
    end = newest % SPAN + 1
    return ring[end - last : end] if last <= end else ring[end - last :] + ring[:end]


GAPS = tuple(series.gap for series in SERIES)


@dataclass(slots=True)
class History:
    """The histories of all GPUs. They are recorded on every tick, even while no page is open."""

    inventory: Callable[[], GpuInventory]
    samples: SampleStore
    newest: int | None = None  # last second recorded
    oldest: int = 0  # first second recorded
    timestamp: float = 0.0  # wall-clock time of `newest`
    gpus: dict[str, ValueHistory] = field(default_factory=dict)  # by UUID, as a lost GPU may return

    def take(self, snapshot: Snapshot) -> None:
        second = int(snapshot.at)
        if self.newest is None:
            self.oldest, self.newest = second, second - 1
        slots = self._slots(second)
        self.newest, self.timestamp = second, snapshot.wall
        self._take_gpus(snapshot, slots)
        if second % SPAN == 0:
            self._forget(second)

    def _slots(self, second: int) -> list[int]:
        """Return the slots in which to store the tick of this second. Clear slots in a long gap."""
        newest = self.newest or 0
        if second - newest <= STANDS:  # repeats a second if the clock has stopped
            return [at % SPAN for at in range(min(newest + 1, second), second + 1)]
        gap = [at % SPAN for at in range(max(newest + 1, second - SPAN + 1), second)]
        for kept in self.gpus.values():
            kept.put(gap, 0, GAPS)
        return [second % SPAN]

    def _take_gpus(self, snapshot: Snapshot, slots: list[int]) -> None:
        inventory, second, samples = self.inventory(), int(snapshot.at), self.samples
        there = {g.uuid: g.key for g in inventory.gpus if g.uuid not in inventory.lost}
        for uuid in there.keys() - self.gpus.keys():
            if len(self.gpus) < MOST_GPUS:
                self.gpus[uuid] = ValueHistory()
        for uuid, kept in self.gpus.items():
            if uuid not in there:
                kept.put(slots, LOST if uuid in inventory.lost else 0, GAPS)
                continue
            gpu = there[uuid]
            verdict, labels = snapshot.verdicts.get(gpu), gpu.labels
            codes = [
                one.code(samples.mean(one.metric, *labels, seconds=one.seconds))
                for one in SERIES
                if one.metric
            ]
            if verdict is None:
                kept.put(slots, 0, codes)
            else:
                kept.put(slots, STATES[verdict.pair], codes, verdict.shares)
                kept.note(second, verdict.shares)
            kept.seen = second

    def _forget(self, second: int) -> None:
        """Drop histories without values, and shares that were 0 for the whole 15 minutes."""
        gone = second - SPAN
        self.gpus = {uuid: kept for uuid, kept in self.gpus.items() if kept.seen > gone}
        for kept in self.gpus.values():
            kept.shares = {pair: ring for pair, ring in kept.shares.items() if any(ring)}
            kept.large = {of: held for of, held in kept.large.items() if held[1] > gone}

    def document(self, since: int | None = None) -> dict[str, Any]:
        """Return the values after second `since`, or all values if some have been overwritten."""
        newest = self.oldest - 1 if self.newest is None else self.newest
        whole = since is None or not newest - SPAN <= since <= newest
        first = self.oldest if whole or since is None else since + 1
        slots = min(SPAN, newest - first + 1)
        names = [series.name for series in SERIES]
        return {
            "whole": whole,
            "newest": newest,
            "timestamp": self.timestamp,
            "slots": slots,
            "states": [None, *map(pair_name, PAIRS), "lost/none"],
            "words": {"lost/none": "lost"} | {pair_name(p): w for p, w in SUMMARIES.items()},
            "series": {series.name: series.document() for series in (*SERIES, SHARE)},
            "gpus": {
                uuid: {
                    "state": _text(kept.states, newest, slots),
                    "shares": {
                        pair_name(pair): _text(ring, newest, slots)
                        for pair, ring in kept.shares.items()
                    },
                    **{n: _text(r, newest, slots) for n, r in zip(names, kept.rings, strict=True)},
                }
                for uuid, kept in self.gpus.items()
            },
        }


def _text(ring: "array[int]", newest: int, slots: int) -> str:
    """Return the latest `slots` integers in little-endian byte order, encoded as Base64."""
    return b64encode(_ordered(ring, newest, slots).tobytes()).decode()
