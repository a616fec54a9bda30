"""Formats tables and paragraphs to fit the width of the terminal."""

import shutil
import textwrap
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest

from agent.jobs.job import percent

UNKNOWN = "-"
USUAL_COLUMNS = 80
LEAST = 40
"""Minimum width of the output in columns. A narrower terminal wraps the lines itself."""

WIDEST_COLUMNS = 140
"""Maximum width of the output in columns. Longer lines are hard to read."""

GUTTER = 2
NARROWEST = 12
"""Minimum width to which a text column is reduced if a table is too wide."""


def local(at: float) -> datetime:
    """Return the local time at a Unix timestamp, or the time in UTC if this fails."""
    moment = datetime.fromtimestamp(at, UTC)
    try:
        return moment.astimezone()
    except (ValueError, OverflowError):
        return moment


def terminal_width() -> int:
    """Return the width of the terminal in columns, from 40 to 140, or 80 if it is unknown."""
    return max(LEAST, min(shutil.get_terminal_size((USUAL_COLUMNS, 24)).columns, WIDEST_COLUMNS))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    figures: Collection[str] = (),
    width: int = USUAL_COLUMNS,
    whole: Collection[str] = (),
    *,
    spare: Collection[str] = (),
) -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cells.

    Columns in `figures` are right-aligned. If the table is wider than `width`, wrap the widest
    columns, except those in `figures` and `whole`. If a word would be split, omit the columns in
    `spare`, in the given order."""
    numeric = [name in figures for name in header]
    kept = [name in (*figures, *whole) for name in header]
    if spare and sum(_least([header, *rows], kept)) > width - GUTTER * len(header):
        first, *rest = spare
        left = [i for i, name in enumerate(header) if name != first]
        header, *rows = ([row[i] for i in left] for row in (header, *rows))
        return table(header, rows, figures, width, whole, spare=rest)
    widths = _fitted([header, *rows], kept, width - GUTTER)
    lines = []
    for row in (header, *rows):
        cells = (textwrap.wrap(text, n or 1) or [""] for text, n in zip(row, widths, strict=True))
        for line in zip_longest(*cells, fillvalue=""):
            columns = zip(line, widths, numeric, strict=True)
            set_out = (text.rjust(n) if right else text.ljust(n) for text, n, right in columns)
            lines.append("".join(" " * GUTTER + text for text in set_out).rstrip())
    return lines


def _fitted(cells: Sequence[Sequence[str]], kept: Sequence[bool], width: int) -> list[int]:
    """Return column widths whose sum fits `width`, if possible. Do not reduce those in `kept`."""
    columns = range(len(kept))
    widths = [max(len(row[i]) for row in cells) for i in columns]
    excess = sum(widths) + GUTTER * (len(widths) - 1) - width
    words = _least(cells, [False] * len(kept))
    # Words are split only as a last resort.
    for least in ([max(NARROWEST, n) for n in words], words, [NARROWEST] * len(widths)):
        while excess > 0 and (
            texts := [i for i in columns if not kept[i] and widths[i] > least[i]]
        ):
            widths[max(texts, key=lambda i: widths[i])] -= 1
            excess -= 1
    return widths


def _least(cells: Sequence[Sequence[str]], kept: Sequence[bool]) -> list[int]:
    """Return the minimum width of each column. Columns in `kept` keep their width. Other columns
    fit their longest word, and their text up to a width of NARROWEST."""
    lines = partial(textwrap.wrap, width=NARROWEST, break_long_words=False)
    columns = enumerate(kept)
    parts = ((row[i : i + 1] if keep else lines(row[i]) for row in cells) for i, keep in columns)
    return [max(len(word) for words in each for word in [*words, ""]) for each in parts]


def prose(text: str, width: int, indent: str = "  ", hanging: str = "") -> list[str]:
    """Return the wrapped lines of a paragraph. Further lines have the extra indent `hanging`."""
    lines = textwrap.wrap(
        text.replace(" %", "\u00a0%"),
        width - 2,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_on_hyphens=False,  # commands and device names contain hyphens
    )
    return [line.replace("\u00a0", " ") for line in lines]


def share(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value)


def of(value: float | None, limit: float | None, scale: float = 1.0) -> str:
    """Return `value` and `limit`, divided by `scale`, as in `350/700`. A dash replaces None."""
    return "/".join(UNKNOWN if one is None else f"{one / scale:.0f}" for one in (value, limit))
