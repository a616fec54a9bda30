"""Pictures of the live page for README: simulated machines after a quarter of an hour.

    python -m tests.browser.pictures [FOLDER]

writes `live.png` (a DGX-1 in the light) and `evidence.png` (why a GPU of a DGX H100 waits, in the
dark); in FOLDER, where one is given, and of every machine in both themes and on a phone.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.browser.chromium import Chromium
from tests.browser.page import NARROW, WIDE, Page
from tests.browser.png import smaller
from tests.stack.fleet import Fleet
from tests.support.repository import ROOT

HERE = ROOT / "exporters/live/pictures"
WEIGHT = 250_000  # bytes that a picture may have

PASTS = {
    "dgx-1-v100": "training*240,starved-disk*110,training*160,held*90,idle*50,"
    "training*170,starved-cpu*70,training*60,nvlink-saturated*75",
    "dgx-h100": "training*240,starved-host-thread*150,training*200,throttled*90,training*180,"
    "starved-peer*70",
    "dgx-station-v100": "training*300,held*140,training*220,starved-cpu*120,nvlink-down*150",
}
"""Past of each machine in the last quarter of an hour: scenario * seconds."""


@contextmanager
def opened(browser: Chromium, address: str, size: tuple[int, int], theme: str) -> Iterator[Page]:
    """A page with everything drawn."""
    with Page(browser, size, theme) as page:
        page.go(address)
        page.until(lambda p: p.all(".tile", "data-gpu"), "tiles")
        wait_until_drawn(page)
        yield page


def wait_until_drawn(page: Page) -> None:
    page.run("new Promise((done) => setTimeout(done, 1200))")


def evidence(page: Page) -> None:
    page.run("document.querySelectorAll('.tile button')[2].click()")
    page.run("document.activeElement.blur()")
    wait_until_drawn(page)


def for_readme(browser: Chromium, machines: Fleet) -> None:
    HERE.mkdir(exist_ok=True)
    with opened(browser, machines.page("dgx-1-v100"), WIDE, "light") as page:
        shoot(page, HERE / "live.png", whole=True)
    with opened(browser, machines.page("dgx-h100"), WIDE, "dark") as page:
        evidence(page)
        shoot(page, HERE / "evidence.png")


def shoot(page: Page, path: Path, *, whole: bool = False) -> None:
    page.picture(path, whole=whole)
    path.write_bytes(smaller(path.read_bytes()))
    weight = path.stat().st_size
    print(f"{path.name}: {weight} bytes")
    assert weight <= WEIGHT, f"{path} is heavier than {WEIGHT} bytes"


def for_eyes(browser: Chromium, machines: Fleet, folder: Path) -> None:
    """Every machine, both themes, both widths, and the evidence."""
    for name in PASTS:
        for size in (WIDE, NARROW):
            for theme in ("light", "dark"):
                with opened(browser, machines.page(name), size, theme) as page:
                    page.picture(folder / f"{name}-{size[0]}-{theme}.png", whole=True)
                    evidence(page)
                    page.picture(folder / f"{name}-{size[0]}-{theme}-evidence.png")


def main() -> None:
    browser = Chromium()
    try:
        with Fleet(1, {name: f"{name}:{history}" for name, history in PASTS.items()}) as machines:
            for_readme(browser, machines)
            if len(sys.argv) > 1:
                for_eyes(browser, machines, Path(sys.argv[1]))
    finally:
        browser.close()


if __name__ == "__main__":
    main()
