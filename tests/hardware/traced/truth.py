"""True shares of GPUs from traces (`gpu_trace.c`) and marks (`marks`); needs NumPy."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.hardware.traced.blocked import EVERY
from tests.hardware.traced.marks import ROW, STEADY, STEP, WAITS

KERNEL, NCCL, TO_GPU, FROM_GPU, ON_GPU = range(5)
RECORD = np.dtype(
    [("start", "<u8"), ("end", "<u8"), ("kind", "<u4"), ("stream", "<u4"), ("bytes", "<u8")]
)
MARK = np.dtype([("start", "<i8"), ("end", "<i8"), ("what", "<i4"), ("ran", "<i8")])

TOGETHER = 200_000
"""Time (ns) within which the kernels of one collective end on all ranks."""

LAUNCH_GAP = 1500
"""Gap (ns) between two kernels that follow each other in a queue: a GPU needs that long to begin
the next one, and counts as active meanwhile."""

LABELS = {name: f"starved/{name}" for name in WAITS} | {"requests": "idle/requests"}

Span = tuple[int, int]
"""Begin and end (CLOCK_MONOTONIC, ns)."""

Doubts = dict[str, tuple[float, float]]
"""By how much a share may truly be less, and more."""


@dataclass(frozen=True, slots=True)
class RankRecords:
    """Records that one rank left: its trace sorted by start, its marks, and the moments (ns) of
    their rows in the steady phase with the time (ns) that its launching threads had run by then,
    and the moments that `blocked` writes."""

    trace: Any
    marks: Any
    at: Any
    ran: Any
    seen: Any

    @property
    def steady(self) -> int | None:
        """Begin of its steady phase (ns)."""
        found = self.marks["start"][self.marks["what"] == STEADY]
        return int(found[0]) if len(found) else None

    def steps(self, since: int, until: int) -> Any:
        """Lengths of the steps (s) that ended within an interval."""
        ends = self.marks["end"][self.marks["what"] == STEP]
        return np.diff(ends[(ends >= since) & (ends < until)]) / 1e9


def read(marks: Path, traces: list[Path]) -> RankRecords:
    """The files of one rank; a record that is not whole yet is left out."""

    def rows(path: Path, kind: Any) -> Any:
        data = path.read_bytes() if path.exists() else b""
        return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], dtype=kind)

    assert MARK.itemsize == ROW.size
    trace = np.concatenate([np.empty(0, RECORD), *(rows(path, RECORD) for path in traces)])
    every = rows(marks, MARK)
    steady = every[every["ran"] > 0]
    at = np.where(steady["end"] == 0, steady["start"], steady["end"])
    seen = rows(seen_blocked(marks), np.dtype("<i8"))
    return RankRecords(np.sort(trace, order="start"), _closed(every), at, steady["ran"], seen)


def seen_blocked(marks: Path) -> Path:
    """The file beside the marks that `blocked` writes."""
    return marks.with_name("blocked")


def _closed(marks: Any) -> Any:
    """The marks without the beginnings of waits; one that is not over lasts until now."""
    begun = np.flatnonzero(marks["end"] == 0)
    kept = np.ones(len(marks), bool)
    kept[begun] = False
    if len(begun) and not np.any(marks["what"][begun[-1] + 1 :] == marks["what"][begun[-1]]):
        marks = marks.copy()
        marks["end"][begun[-1]], kept[begun[-1]] = time.monotonic_ns(), True
    return marks[kept]


class Cover:
    """Flags of the segments between `edges` that intervals cover."""

    def __init__(self, edges: Any) -> None:
        self._at = edges[:-1]

    def __call__(self, starts: Any, ends: Any) -> Any:
        begun = np.searchsorted(np.sort(starts), self._at, "right")
        return begun > np.searchsorted(np.sort(ends), self._at, "right")


@dataclass(frozen=True, slots=True)
class Slice:
    """Trace of a while: shares by label, kernels and copies a second, for each cause the part of
    its waits in which the GPU was idle, and by how much the records leave a share in doubt, down
    and up: whether the thread ran or slept while the GPU was idle, and the chance of sampling."""

    shares: dict[str, float]
    records: float
    idle: dict[str, float]
    doubts: Doubts


def of_window(one: RankRecords, traced: Slice, slice_: Span, window: Span) -> dict[str, float]:
    """Shares of a window that was not traced, from a slice that was: the GPU's own work and its
    transfers follow the steps, waits of the launching thread are known from its marks, and what is
    left divides as in the slice."""
    steps = [one.steps(*span) for span in (slice_, window)]
    pace = float(steps[0].mean() / steps[1].mean()) if all(map(len, steps)) else 1.0
    found = {n: traced.shares.get(n, 0.0) * pace for n in ("busy", "communicating/nvlink")}
    for place, name in enumerate(WAITS):
        chosen = one.marks[one.marks["what"] == place]
        starts, ends = (np.clip(chosen[side], *window) for side in ("start", "end"))
        waited = float((ends - starts).sum()) / (window[1] - window[0])
        if waited:
            found[LABELS[name]] = waited * traced.idle.get(name, 1.0)
    rest = {n: s for n, s in traced.shares.items() if n not in found and n not in LABELS.values()}
    rest.setdefault("starved/host_thread", 1e-9)
    for name in ("starved/peer", "starved/pcie"):  # beside what marks say of them
        rest[name] = 0.0 if name in found else traced.shares.get(name, 0.0)
    left = max(0.0, 1.0 - sum(found.values()))
    whole = sum(rest.values())
    for name, share in rest.items():
        found[name] = found.get(name, 0.0) + left * share / whole
    total = sum(found.values())
    return {name: share / total for name, share in found.items() if share}


def shares(records: list[RankRecords], since: int, until: int) -> list[Slice]:
    """True shares of each rank's GPU between two moments (ns)."""
    every = [np.concatenate([[since, until], *(_edges(one) for one in records)])]
    edges = np.unique(np.clip(np.concatenate(every), since, until))
    length = np.diff(edges).astype(float)
    cover = Cover(edges)
    busy = [_covered(one, cover, KERNEL, ON_GPU) for one in records]
    copies = [_covered(one, cover, TO_GPU, FROM_GPU) for one in records]
    waits = [_waits(one, cover) for one in records]
    late = _late(records, cover)
    found = []
    idle: list[dict[str, float]] = []
    in_doubt: list[Doubts] = []
    excess: list[float] = []  # seconds of spinning for a rank that was held up by its own thread
    for mine, one in enumerate(records):
        is_kernel = one.trace["kind"] == NCCL
        nccl = cover(one.trace["start"][is_kernel], one.trace["end"][is_kernel]) & ~busy[mine]
        spins = nccl & late[mine]
        other = len(records) - 1 - mine if len(records) == 2 else mine
        idle_there = ~busy[other] & ~copies[other] & ~np.any(list(waits[other].values()), axis=0)
        launching = spins & idle_there & (other != mine)
        rest = ~busy[mine] & ~nccl
        out = {
            "busy": length[busy[mine]].sum(),
            "communicating/nvlink": length[nccl & ~spins].sum(),
            "starved/peer": length[spins & ~launching].sum(),
            "starved/pcie": length[rest & copies[mine]].sum(),
        }
        rest &= ~copies[mine]
        idle.append(
            {
                name: float(length[rest & covered].sum() / length[covered].sum())
                for name, covered in waits[mine].items()
                if length[covered].sum()
            }
        )
        prepares = may_run = 0.0
        for name, covered in waits[mine].items():
            out[LABELS[name]] = out.get(LABELS[name], 0.0) + length[rest & covered].sum()
            if name == "cpu":
                prepares, most, _ = _ran(one, edges, rest & covered)
                out[LABELS[name]] -= prepares
                may_run = most - prepares
            rest &= ~covered
        least, most, unmarked = _ran(one, edges, rest)
        blocked, asleep = (_seen(one.seen * sign, edges, rest) for sign in (1, -1))
        sleeps = min(max(unmarked - most, blocked + asleep), unmarked - least)
        by_chance, unsure = (
            min(most_off, (seen * EVERY * 1e9) ** 0.5)
            for most_off, seen in ((most - least, blocked + asleep), (sleeps, blocked))
        )
        blocked = min(sleeps, blocked)
        out[LABELS["disk"]] += blocked
        out[LABELS["cpu"]] += sleeps - blocked
        out["starved/host_thread"] = length[rest].sum() - sleeps + prepares
        in_doubt.append(
            {
                "starved/host_thread": (by_chance, may_run + by_chance),
                LABELS["cpu"]: (may_run + by_chance + unsure, by_chance + unsure),
                LABELS["disk"]: (unsure, unsure),
            }
        )
        excess.append(length[launching].sum())
        found.append(out)
    for mine, out in enumerate(found):  # who waits in a step is chance: both launch too slowly
        common = min(excess)
        out["starved/host_thread"] += common
        out["starved/peer"] += excess[mine] - common
    whole = float(until - since)
    number = [
        float(((one.trace["start"] >= since) & (one.trace["start"] < until)).sum()) / whole * 1e9
        for one in records
    ]
    return [
        Slice(
            {label: float(ns) / whole for label, ns in out.items() if ns},
            rate,
            its,
            {label: (less / whole, more / whole) for label, (less, more) in doubt.items()},
        )
        for out, rate, its, doubt in zip(found, number, idle, in_doubt, strict=True)
    ]


def _ran(one: RankRecords, edges: Any, rests: Any) -> tuple[float, float, float]:
    """Return the least and the most time (ns) for which the launching threads can have run in the
    chosen segments, and the length of these. Known is how long they ran between each two rows of
    marks in the steady phase: for the rest they may have run while the GPU was active, or not."""
    count = max(0, len(one.at) - 1)
    place = np.searchsorted(one.at, edges[:-1], "right") - 1
    inside, length = (place >= 0) & (place < count), np.diff(edges)
    rest, other = (
        np.bincount(place[inside & flags], length[inside & flags], minlength=count)
        for flags in (rests, ~rests)
    )
    ran = np.diff(one.ran)
    least = np.minimum(rest, np.clip(ran - other, 0.0, None))
    return float(least.sum()), float(np.minimum(rest, ran).sum()), float(rest.sum())


def _seen(moments: Any, edges: Any, rests: Any) -> float:
    """Return the part (ns) of segments for which the positive moments stand."""
    place = np.searchsorted(edges, moments[moments > 0], "right") - 1
    inside = place[(place >= 0) & (place < len(rests))]
    return float(rests[inside].sum()) * EVERY * 1e9


def _edges(one: RankRecords) -> Any:
    spans = one.marks[one.marks["what"] >= 0]
    return np.concatenate(
        [one.trace["start"].astype(np.int64), _filled(one)[1], spans["start"], spans["end"], one.at]
    )


def _filled(one: RankRecords) -> tuple[Any, Any]:
    """Starts and ends of all that it did on its GPU, ends moved over the gaps between launches."""
    starts, ends = one.trace["start"].astype(np.int64), one.trace["end"].astype(np.int64)
    following = np.append(starts[1:], np.iinfo(np.int64).max)
    gap = following - ends
    return starts, np.where((gap > 0) & (gap <= LAUNCH_GAP), following, ends)


def _covered(one: RankRecords, cover: Cover, *kinds: int) -> Any:
    starts, ends = _filled(one)
    own = np.isin(one.trace["kind"], kinds)
    return cover(starts[own], ends[own])


def _waits(one: RankRecords, cover: Cover) -> dict[str, Any]:
    return {
        name: cover(chosen["start"], chosen["end"])
        for place, name in enumerate(WAITS)
        for chosen in (one.marks[one.marks["what"] == place],)
    }


def _late(records: list[RankRecords], cover: Cover) -> list[Any]:
    """Return the intervals in which a rank's collective has begun and that of the other rank has
    not."""
    nothing = np.empty(0, np.int64)
    if len(records) != 2:
        return [cover(nothing, nothing) for _ in records]
    every = [one.trace[one.trace["kind"] == NCCL] for one in records]
    found = []
    for own, theirs in (every, every[::-1]):
        if not len(own) or not len(theirs):
            found.append(cover(nothing, nothing))
            continue
        ended = np.sort(theirs, order="end")  # matching collectives end together
        place = np.searchsorted(ended["end"], own["end"])
        near = np.stack([np.clip(place - 1, 0, None), np.clip(place, None, len(ended) - 1)])
        apart = np.abs(ended["end"][near].astype(np.int64) - own["end"].astype(np.int64))
        nearest = near[np.argmin(apart, axis=0), np.arange(len(own))]
        begun = own["start"].astype(np.int64)
        until = np.minimum(ended["start"][nearest], own["end"]).astype(np.int64)
        later = (until > begun) & (np.min(apart, axis=0) < TOGETHER)
        found.append(cover(begun[later], until[later]))
    return found
