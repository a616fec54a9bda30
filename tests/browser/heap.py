"""The page's memory over time, on a machine that goes through all its scenarios.

    python -m tests.browser.heap MINUTES [SPEED]

prints it each minute of the machine's clock: the long form of what the tests do for ten.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.browser.chromium import Chromium
from tests.browser.page import Page
from tests.stack.fleet import Fleet

SYSTEM = "dgx-station-v100"


@dataclass(frozen=True, slots=True)
class Weight:
    """Size of a page after `minutes` of the machine's clock, with garbage collected."""

    minutes: float
    heap: int  # bytes of objects and of the buffers behind arrays
    nodes: int  # of the document, and those that only scripts still hold
    listeners: int

    def __str__(self) -> str:
        return (
            f"{self.minutes:6.1f} min: {self.heap / 1e6:.2f} MB, {self.nodes} nodes, "
            f"{self.listeners} listeners"
        )


def weigh(page: Page, minutes: float) -> Weight:
    heap = page.heap()
    shown = {m["name"]: m["value"] for m in page.ask("Performance.getMetrics")["metrics"]}
    return Weight(minutes, heap, int(shown["Nodes"]), int(shown["JSEventListeners"]))


def weights(page: Page, speed: float, minutes: float) -> Iterator[Weight]:
    """One each minute of the machine's clock; the evidence is opened and closed in between."""
    began = time.monotonic()
    for minute in range(1, int(minutes) + 1):
        page.run("document.querySelector('.tile button').click()")
        while time.monotonic() < began + 60 * minute / speed:
            page.browser.listen(0.1)
        page.run("document.querySelector('#evidence').close()")
        yield weigh(page, minute)


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    speed = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    browser = Chromium()
    try:
        with Fleet(speed, {"tour": f"{SYSTEM}:tour"}) as machines, Page(browser) as page:
            page.go(machines.page("tour"))
            page.until(lambda p: p.all(".tile", "data-gpu"), 60, "tiles")
            for weight in weights(page, speed, minutes):
                print(weight, flush=True)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
