"""Lines of Python by room, and the most that there may be: what is added must replace something.

`python -m pytest -s tests/test_size.py` prints the table.
"""

from collections import Counter

from tests.support.repository import ROOT

MOST = {"product": 32_000, "tests": 42_000}
"""Bounds, of which 1 % may be exceeded: lower them with each cut."""

PACKAGES = "agent", "exporters", "dashboards", "alerts"


def lines(package: str) -> Counter[str]:
    """Return the lines of a package by its folders."""
    found: Counter[str] = Counter()
    for path in (ROOT / package).rglob("*.py"):
        room = path.relative_to(ROOT).parent.parts[:2]
        found["/".join(room)] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def test_lines_stay_below_their_bounds() -> None:
    rooms = sum(map(lines, PACKAGES), Counter[str]())
    found = {"product": rooms.total(), "tests": lines("tests").total()}
    table = "\n".join(f"{count:6} {room}" for room, count in sorted(rooms.items()))
    print(f"\n{table}\n{found}")
    assert all(found[name] <= 1.01 * most for name, most in MOST.items()), found
