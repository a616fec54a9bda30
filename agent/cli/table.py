"""Tables and prose in a terminal of 80 columns, or as wide as it is; the table of data paths."""

import re
import shutil
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby, zip_longest
from math import log, log2
from statistics import fmean

from agent.jobs.job import percent
from agent.ranges import device_ranges, natural
from exporters.live.paths import INWARD
from exporters.messages import Document, rate

UNKNOWN = "-"
USUAL = 80
LEAST = 40
"""Columns below which nothing is made to fit: the terminal breaks the lines."""

WIDEST = 140
"""Columns beyond which a line is no longer easy to read."""

GUTTER = 2
FIGURE = re.compile(r"[\d<-].{0,19}$")  # what is longer is text, though it begins with a digit
NARROWEST = 12
"""Columns that a text keeps when a table is made to fit."""


def local(at: float) -> datetime:
    """A moment (s since the epoch) in the time zone of the terminal, in UTC where that is none."""
    moment = datetime.fromtimestamp(at, UTC)
    try:
        return moment.astimezone()
    except (ValueError, OverflowError):
        return moment


def terminal_width() -> int:
    """Columns of the terminal, within bounds; 80 where there is none, or it does not say."""
    return max(LEAST, min(shutil.get_terminal_size((USUAL, 24)).columns, WIDEST))


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ", width: int = USUAL
) -> list[str]:
    """Lines with columns as wide as their widest cell, numbers set right; where that is wider than
    `width`, the widest columns of text are wrapped."""
    filled = [[row[i] for row in rows if row[i] not in ("", UNKNOWN)] for i in range(len(header))]
    numeric = [bool(texts) and all(map(FIGURE.match, texts)) for texts in filled]
    widths = _fitted([header, *rows], numeric, width - len(indent))
    lines = []
    for row in (header, *rows):
        cells = (textwrap.wrap(text, n or 1) or [""] for text, n in zip(row, widths, strict=True))
        for line in zip_longest(*cells, fillvalue=""):
            columns = zip(line, widths, numeric, strict=True)
            set_out = (text.rjust(n) if right else text.ljust(n) for text, n, right in columns)
            lines.append(indent + (" " * GUTTER).join(set_out).rstrip())
    return lines


def _fitted(cells: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> list[int]:
    """Columns for each cell of a row, in all as many as there are, if that can be."""
    columns = range(len(numeric))
    widths = [max(len(row[i]) for row in cells) for i in columns]
    excess = sum(widths) + GUTTER * (len(widths) - 1) - width
    words = [max(len(word) for row in cells for word in [*row[i].split(), ""]) for i in columns]
    # Words are cut where nothing else helps.
    for least in ([max(NARROWEST, n) for n in words], words, [NARROWEST] * len(widths)):
        while excess > 0 and (
            texts := [i for i in columns if not numeric[i] and widths[i] > least[i]]
        ):
            widths[max(texts, key=lambda i: widths[i])] -= 1
            excess -= 1
    return widths


def prose(text: str, width: int, indent: str = "  ", hanging: str = "") -> list[str]:
    """A paragraph; `hanging` is what its further lines are set in by besides."""
    lines = textwrap.wrap(
        text.replace(" %", "\u00a0%"),
        width - 2,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_on_hyphens=False,  # commands and devices have them
    )
    return [line.replace("\u00a0", " ") for line in lines]


def number(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value / scale:.{digits}f}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value)


def divided(parts: Mapping[str, float]) -> str:
    """`busy 65 %, starved by disk 30 %`: the largest first."""
    named = sorted(
        ((part / sum(parts.values()), name) for name, part in parts.items()), reverse=True
    )
    return ", ".join(f"{name} {share(part)}" for part, name in named if part >= 0.005)


def of(value: float | None, limit: float | None, scale: float = 1.0, digits: int = 0) -> str:
    """`now/limit` in one unit; what is absent is a dash."""
    return f"{number(value, scale, digits)}/{number(limit, scale, digits)}"


HEADER = ("path", "device", "in/read", "%", "out/write", "%", "")
QUIET = 0.01
"""Ratio below which both directions go without a row."""

QUIET_BYTES = 5e6
"""Bytes a second below which the same holds for a path without a limit."""

AT_REST = "at rest (below 1 % of the limit, or 5 MB/s where none is known)"


def flows(paths: Iterable[Document], width: int) -> Iterator[str]:
    """A row for each path that moves anything, the fullest first; the others on one line."""
    pairs = [
        {way["direction"] in INWARD: way for way in ways}
        for _, ways in groupby(paths, key=lambda p: (p["path"], p["device"]))
    ]
    busy = [pair for pair in pairs if any(map(_moves, pair.values()))]
    busy.sort(key=_place)

    def alike(pair: dict[bool, Document]) -> list[object]:
        return [(k, w["path"], w["limit"], w["saturated"], _level(w)) for k, w in pair.items()]

    rows = [_row([*group]) for _, group in groupby(busy, key=alike)]
    yield from table(HEADER, rows, width=width) if rows else ()
    still: defaultdict[str, list[dict[bool, Document]]] = defaultdict(list)
    for pair in (pair for pair in pairs if pair not in busy):
        unread = any(way["bytes_per_second"] is None for way in pair.values())
        off = any(way["up"] is False for way in pair.values())
        still["without link" if off else "traffic not read" if unread else AT_REST].append(pair)
    for words, which in still.items():
        yield from prose(f"{words}: {_named(which)}", width, hanging="  ")


def _moves(way: Document) -> bool:
    if way["ratio"] is not None:
        return bool(way["ratio"] >= QUIET)
    return (way["bytes_per_second"] or 0) >= QUIET_BYTES


def _place(pair: dict[bool, Document]) -> tuple[bool, float, int, str, list[tuple[int, str]]]:
    """Full ones first, then by how near the fuller direction is to its threshold, in tenths, then
    by how much moves, in powers of 4; devices that are alike in their natural order."""
    ways, either = pair.values(), next(iter(pair.values()))
    nearest = max((way["ratio"] or 0.0) / way["threshold"] for way in ways)
    moved = max(way["bytes_per_second"] or 0.0 for way in ways)
    power, device = round(log(moved, 4)) if moved else 0, natural(either["device"])
    full = any(way["saturated"] for way in ways)
    return not full, -round(nearest, 1), -power, either["path"], device


def _level(way: Document) -> int:
    """Return the fullness in steps of 5 %, or the traffic in powers of 2."""
    if way["ratio"] is not None:
        return round(20 * float(way["ratio"]))
    return round(log2(max(way["bytes_per_second"] or 0.0, QUIET_BYTES)))


def _row(alike: list[dict[bool, Document]]) -> tuple[str, ...]:
    either = next(iter(alike[0].values()))
    full = [way for way in alike[0].values() if way["saturated"]]
    marks = ["full" if any(way["limit"] for way in full) else "busy"] * bool(full)
    marks += [f"of {either['array']}"] * bool(either.get("array"))
    cells: list[str] = []
    for inward in (True, False):
        ways = [pair[inward] for pair in alike if inward in pair]
        moved = _mean(ways, "bytes_per_second")
        known = ways and moved is not None
        cells.append(rate(moved, ways[0]["limit"], ways[0]["path"]) if known else UNKNOWN)
        cells.append(share(_mean(ways, "ratio")))
    devices = (next(iter(pair.values()))["device"] for pair in alike)
    return (either["path"], device_ranges(devices, " "), *cells, " ".join(marks))


def _mean(ways: Iterable[Document], name: str) -> float | None:
    known = [way[name] for way in ways if way[name] is not None]
    return fmean(known) if known else None


def _named(pairs: Iterable[dict[bool, Document]]) -> str:
    """`nvlink gpu0-7, disk sda sdb`."""
    names = [next(iter(pair.values())) for pair in pairs]
    return ", ".join(
        f"{path} {device_ranges((way['device'] for way in ways), ' ')}"
        for path, ways in groupby(names, key=lambda way: way["path"])
    )
