"""Tables and prose in a terminal of 80 columns, or as wide as it is."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from agent.ranges import natural, ranges

UNKNOWN = "-"
USUAL = 80
LEAST = 40
"""Columns below which nothing is made to fit: the terminal breaks the lines."""

WIDEST = 140
"""Columns beyond which a line is no longer easy to read."""

GUTTER = 2
LONGEST_FIGURE = 20  # what is longer is text, though it begins with a digit
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
    numeric = [_is_numeric(rows, i) for i in range(len(header))]
    widths = _fitted([header, *rows], numeric, width - len(indent))
    return [
        indent + _line(line, widths, numeric)
        for row in (header, *rows)
        for line in _wrapped(row, widths)
    ]


def _fitted(cells: Sequence[Sequence[str]], numeric: Sequence[bool], width: int) -> list[int]:
    """Columns for each cell of a row, in all as many as there are, if that can be."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(numeric))]
    excess = sum(widths) + GUTTER * (len(widths) - 1) - width
    while excess > 0:
        texts = [i for i in range(len(widths)) if not numeric[i] and widths[i] > NARROWEST]
        if not texts:
            break
        widest = max(texts, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
    return widths


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> Iterator[list[str]]:
    """The lines of one row: as many as its longest text takes."""
    cells = [
        textwrap.wrap(text, width or 1) or [""] for text, width in zip(row, widths, strict=True)
    ]
    for line in zip_longest(*cells, fillvalue=""):
        yield list(line)


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    filled = [row[column] for row in rows if row[column] not in ("", UNKNOWN)]
    return bool(filled) and all(
        (text[0].isdigit() or text[0] in "-<") and len(text) <= LONGEST_FIGURE for text in filled
    )


def _line(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    cells = [
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(row, widths, numeric, strict=True)
    ]
    return (" " * GUTTER).join(cells).rstrip()


def prose(text: str, width: int, indent: str = "  ", hanging: str = "") -> list[str]:
    """A paragraph; `hanging` is what its further lines are set in by besides."""
    return textwrap.wrap(text, width - 2, initial_indent=indent, subsequent_indent=indent + hanging)


def number(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value / scale:.{digits}f}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def of(value: float | None, limit: float | None, scale: float = 1.0, digits: int = 0) -> str:
    """`now/limit` in one unit; what is absent is a dash."""
    return f"{number(value, scale, digits)}/{number(limit, scale, digits)}"


def device_ranges(devices: Iterable[str], between: str = ", ") -> str:
    """`gpu0-7, md0, sda`: GPUs that are neighbours become a range, what has no name is left out."""
    named = sorted(filter(None, devices), key=natural)
    gpus = [int(name[3:]) for name in named if _is_gpu(name)]
    others = [name for name in named if not _is_gpu(name)]
    return between.join([*([f"gpu{ranges(gpus)}"] if gpus else []), *others])


def _is_gpu(name: str) -> bool:
    return name.startswith("gpu") and name[3:].isdigit()
