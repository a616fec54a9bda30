"""Tables in a terminal of 80 columns."""

from collections.abc import Sequence

UNKNOWN = "-"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Lines with columns as wide as their widest cell; the first column is set left, numbers
    right."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [_is_numeric(rows, i) for i in range(len(header))]
    return [indent + _line(row, widths, numeric) for row in cells]


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    filled = [row[column] for row in rows if row[column] not in ("", UNKNOWN)]
    return bool(filled) and all(text[0].isdigit() or text[0] == "-" for text in filled)


def _line(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    cells = [
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(row, widths, numeric, strict=True)
    ]
    return "  ".join(cells).rstrip()


def number(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
    """A number in another unit, or a dash where it is absent."""
    return UNKNOWN if value is None else f"{value / scale:.{digits}f}"


def share(value: float | None) -> str:
    """A ratio in per cent, or a dash."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def of(value: float | None, limit: float | None, scale: float = 1.0) -> str:
    """`now/limit` in one unit; what is absent is a dash."""
    return f"{number(value, scale)}/{number(limit, scale)}"
