"""The picture of the live page in README: a simulated machine after a quarter of an hour.

python -m tests.browser.pictures
"""

from tests.browser.chromium import Chromium
from tests.browser.page import WIDE, Page
from tests.stack.fleet import Fleet
from tests.support.repository import ROOT

PAST = (
    "dgx-1-v100:training*240,starved-disk*110,training*160,held*90,idle*50,"
    "training*170,starved-cpu*70,training*60,nvlink-saturated*75"
)
"""The machine, and its last quarter of an hour: scenario * seconds."""


def main() -> None:
    browser = Chromium()
    try:
        with Fleet(1, {"dgx": PAST}) as machines, Page(browser, WIDE, "light") as page:
            page.go(machines.page("dgx"))
            page.until(lambda p: p.all(".tile", "data-gpu"), "tiles")
            page.picture(ROOT / "exporters/live/pictures/live.png")
    finally:
        browser.close()


if __name__ == "__main__":
    main()
