"""A page may stay open for weeks: ten minutes of a machine's clock must leave its memory flat."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.browser.chromium import Chromium
from tests.browser.page import Page
from tests.stack.fleet import Fleet
from tests.support.nightly import shortly

SPEED, MINUTES = 60.0, 10
GROWTH = 1_500_000
"""Bytes by which the lightest of the last minutes may be above the lightest of the first. Over four
hours it swings by 1.1 MB with what the machine plays, and does not grow; 2.5 kB left behind by
every tick would be more."""


class Weight(NamedTuple):
    """Size of a page, with garbage collected."""

    heap: int  # bytes of objects and of the buffers behind arrays
    nodes: float  # of the document, and those that only scripts still hold
    listeners: float


def weights(page: Page) -> Iterator[Weight]:
    """One every minute of the machine's clock; the evidence is opened and closed in between."""
    began = time.monotonic()
    for minute in range(1, MINUTES + 1):
        page.run("document.querySelector('.tile button').click()")
        while time.monotonic() < began + 60 * minute / SPEED:
            page.browser.listen(0.1)
        page.run("document.querySelector('#evidence').close()")
        heap = page.heap()
        shown = {m["name"]: m["value"] for m in page.ask("Performance.getMetrics")["metrics"]}
        yield Weight(heap, shown["Nodes"], shown["JSEventListeners"])


@pytest.mark.browser
@pytest.mark.parametrize("system", shortly(("l40s", "dgx-station-v100"), ("l40s",)))
def test_ten_minutes_leave_the_memory_of_the_page_flat(
    chromium: Chromium, machines: Callable[..., Fleet], system: str
) -> None:
    address = machines(SPEED, tour=f"{system}:tour").page("tour")
    with Page(chromium) as page:
        page.go(address)
        page.until(lambda p: p.all(".tile", "data-gpu"), "tiles")
        found = list(weights(page))
        print(found)
        assert page.errors == []
    first, last = (min(w.heap for w in part) for part in (found[1:4], found[-3:]))
    assert last - first < GROWTH
    assert max(w.nodes for w in found) < 5000
    # A row that comes and goes brings two: only what never goes again is a leak.
    assert min(w.listeners for w in found[-3:]) <= max(w.listeners for w in found[1:4])
