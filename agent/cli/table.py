"""Tables and prose in a terminal of 80 columns, or as wide as it is; the table of data paths."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from math import log, log2
from statistics import fmean

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
    for least in (words, [0] * len(widths)):  # words are cut where nothing else helps
        while excess > 0 and (
            texts := [i for i in columns if not numeric[i] and widths[i] > max(NARROWEST, least[i])]
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
    )
    return [line.replace("\u00a0", " ") for line in lines]


def number(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value / scale:.{digits}f}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def divided(parts: Mapping[str, float], most: int = 4) -> str:
    """`busy 65 %, starved by disk 30 %, other 5 %`: the largest first, whole per cents that make
    100."""
    exact = {name: 100 * part / sum(parts.values()) for name, part in parts.items()}
    cents = {name: int(part) for name, part in exact.items()}
    for name in sorted(exact, key=lambda n: cents[n] - exact[n])[: 100 - sum(cents.values())]:
        cents[name] += 1
    shown = sorted(filter(cents.get, cents), key=lambda n: -exact[n])[:most]
    other = 100 - sum(cents[name] for name in shown)
    named = [f"{name} {cents[name]} %" for name in shown]
    return ", ".join([*named, *[f"other {other} %"] * (other > 0)])


def of(value: float | None, limit: float | None, scale: float = 1.0, digits: int = 0) -> str:
    """`now/limit` in one unit; what is absent is a dash."""
    return f"{number(value, scale, digits)}/{number(limit, scale, digits)}"


HEADER = ("path", "device", "in/read", "%", "out/write", "%", "")
ORIGINS = {
    "configured": "from the configuration",
    "spec": "from the spec sheet",
    "hardware": "from the hardware now",
}

BUSY = "busy nearly all the time, "

QUIET = 0.01
"""Ratio below which both directions go without a row."""

QUIET_BYTES = 5e6
"""Bytes a second below which the same holds for a path without a limit."""


def flows(paths: Iterable[Document], width: int) -> Iterator[str]:
    """A row for each path that moves anything, the fullest first; the others on one line."""
    pairs = [
        {way["direction"] in INWARD: way for way in ways}
        for _, ways in groupby(paths, key=lambda p: (p["path"], p["device"]))
    ]
    busy = [pair for pair in pairs if any(map(_moves, pair.values()))]
    busy.sort(key=_place)

    def traffic(pair: dict[bool, Document]) -> list[object]:
        """Return the key by which devices share a row: their traffic is about equal."""
        ways = ((k, w["path"], w["limit"], w["saturated"], _level(w)) for k, w in pair.items())
        return [*ways]

    rows = [_row([*group]) for _, group in groupby(busy, key=traffic)]
    if rows:
        yield from table(HEADER, rows, width=width)
        ways = [way for pair in busy for way in pair.values()]
        by_origin = [
            (dict.fromkeys(way["path"] for way in ways if way["origin"] == origin), words)
            for origin, words in ORIGINS.items()
        ]
        origins = "; ".join(f"{', '.join(found)} {words}" for found, words in by_origin if found)
        yield from prose(f"limits: {origins}" if origins else "", width, hanging="  ")
        yield from prose(_nearest(busy), width)
    at_rest, linkless, silent = "at rest", "without link", "traffic not read"
    still: dict[str, list[dict[bool, Document]]] = {at_rest: [], linkless: [], silent: []}
    for pair in (pair for pair in pairs if pair not in busy):
        unread = any(way["bytes_per_second"] is None for way in pair.values())
        off = any(way["up"] is False for way in pair.values())
        still[linkless if off else silent if unread else at_rest].append(pair)
    unlimited = any(way["limit"] is None for pair in still[at_rest] for way in pair.values())
    or_less = f", or {QUIET_BYTES / 1e6:.0f} MB/s where none is known" * unlimited
    below = f" (below {100 * QUIET:.0f} % of the limit{or_less})"
    for words, which in still.items():
        if which:
            named = f"{words}{below * (words == at_rest)}: {_named(which)}"
            yield from prose(named, width, hanging="  ")


def _nearest(pairs: Iterable[dict[bool, Document]]) -> str:
    """`nearest to its limit: pcie gpu0-3, receive, at 81 %; disk md1, read, busy nearly all ...`:
    devices that are alike together, and disks without a limit beside them."""
    ways = [way for pair in pairs for way in pair.values()]
    most = max((way["ratio"] or 0.0 for way in ways), default=0.0)
    at = f"of those with a known limit none above {100 * QUIET:.0f} %"
    if most >= QUIET:
        first = next(way for way in ways if way["ratio"] == most)
        kind = first["path"], first["direction"]
        alike = [
            w for w in ways if kind == (w["path"], w["direction"]) and _level(w) == _level(first)
        ]
        devices = device_ranges((way["device"] for way in alike), " ")
        mean = share(fmean(way["ratio"] for way in alike))
        at = f"{kind[0]} {devices}, {kind[1]}, at {mean}"
    free = [w for w in ways if not w["limit"] and not w.get("array")]
    fullest = sorted(free, key=lambda w: w["bytes_per_second"] or 0.0)[-1:]
    beside = (
        f"; {w['path']} {w['device']}, {w['direction']}, {BUSY * w['saturated']}limit unknown"
        for w in free
        if w["saturated"] or (w in fullest and _moves(w))
    )
    return f"nearest to its limit: {at}{''.join(beside)}"


def _moves(way: Document) -> bool:
    if way["ratio"] is not None:
        return bool(way["ratio"] >= QUIET)
    return (way["bytes_per_second"] or 0) >= QUIET_BYTES


def _place(pair: dict[bool, Document]) -> tuple[bool, float, int, str, list[tuple[int, str]]]:
    """Full ones first, then by how near the fuller direction is to its threshold, in tenths, then
    by how much moves, in powers of 4; devices that are alike in their natural order."""
    ratios = [(way["ratio"] or 0.0) / way["threshold"] for way in pair.values()]
    full = any(way["saturated"] for way in pair.values())
    moved = max(way["bytes_per_second"] or 0.0 for way in pair.values())
    either = next(iter(pair.values()))
    power = round(log(moved, 4)) if moved else 0
    return not full, -round(max(ratios), 1), -power, either["path"], natural(either["device"])


def _level(way: Document) -> int:
    """Return the fullness in steps of 5 %, or the traffic in powers of 2."""
    if way["ratio"] is not None:
        return round(20 * float(way["ratio"]))
    return round(log2(max(way["bytes_per_second"] or 0.0, QUIET_BYTES)))


def _row(alike: list[dict[bool, Document]]) -> tuple[str, ...]:
    first = alike[0]
    either = next(iter(first.values()))
    full = {inward: way for inward, way in first.items() if way["saturated"]}
    mark = "" if not full else "busy" if all(w["limit"] is None for w in full.values()) else "full"
    if mark and len(full) < len(first):
        mark += " in" if True in full else " out"
    ways = (
        cell
        for inward in (True, False)
        for cell in _cells([pair[inward] for pair in alike if inward in pair])
    )
    devices = (next(iter(pair.values()))["device"] for pair in alike)
    member = f"of {either['array']}" * bool(either.get("array"))
    last = " ".join(filter(None, (mark, member)))
    return (either["path"], device_ranges(devices, " "), *ways, last)


def _cells(ways: list[Document]) -> tuple[str, str]:
    known = [way for way in ways if way["bytes_per_second"] is not None]
    if not known:
        return UNKNOWN, UNKNOWN
    moved = fmean(way["bytes_per_second"] for way in known)
    ratios = [way["ratio"] for way in known if way["ratio"] is not None]
    mean = fmean(ratios) if ratios else None
    filled = "< 1 %" if mean and mean < QUIET / 2 else share(mean)
    return rate(moved, known[0]["limit"], known[0]["path"]), filled


def _named(pairs: Iterable[dict[bool, Document]]) -> str:
    """`nvlink gpu0-7, disk sda sdb`."""
    names = [next(iter(pair.values())) for pair in pairs]
    return ", ".join(
        f"{path} {device_ranges((way['device'] for way in ways), ' ')}"
        for path, ways in groupby(names, key=lambda way: way["path"])
    )
