"""A page may stay open for weeks: ten minutes of a machine's clock must leave its memory flat."""

from collections.abc import Callable

import pytest

from tests.browser.chromium import Chromium
from tests.browser.heap import SYSTEM, weights
from tests.browser.page import Page
from tests.stack.fleet import Fleet

SPEED, MINUTES = 60.0, 10
GROWTH = 1_500_000
"""Bytes by which the lightest of the last minutes may be above the lightest of the first. Over four
hours it swings by 1.1 MB with what the machine plays, and does not grow; 2.5 kB left behind by each
tick would be more."""

MOST_NODES = 5000


@pytest.mark.browser
def test_ten_minutes_leave_the_memory_of_the_page_flat(
    chromium: Chromium, machines: Callable[..., Fleet]
) -> None:
    address = machines(SPEED, tour=f"{SYSTEM}:tour").page("tour")
    with Page(chromium) as page:
        page.go(address)
        page.until(lambda p: p.all(".tile", "data-gpu"), 60, "tiles")
        found = []
        for weight in weights(page, SPEED, MINUTES):
            print(weight)
            found.append(weight)
        assert page.errors == []
    first, last = (min(w.heap for w in part) for part in (found[1:4], found[-3:]))
    assert last - first < GROWTH
    assert max(w.nodes for w in found) < MOST_NODES
    # A row that comes and goes brings two: only what never goes again is a leak.
    assert min(w.listeners for w in found[-3:]) <= max(w.listeners for w in found[1:4])
