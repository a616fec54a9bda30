"""The jobs on the live page: how each gets on, and its receipt once it has ended."""

from collections.abc import Callable

import pytest

from tests.browser.chromium import Chromium
from tests.browser.page import Page
from tests.stack.fleet import Fleet


@pytest.mark.browser
def test_a_job_is_shown_with_its_steps_and_then_its_receipt(
    chromium: Chromium, machines: Callable[..., Fleet]
) -> None:
    fleet = machines(4.0, one="dgx-station-v100:training")
    with Page(chromium) as page:
        page.go(fleet.page("one"))
        page.until(lambda p: "steps/s" in text(p, ".job p"), "steps per second")
        page.until(lambda p: points(p) >= 2, "a curve")
        assert "GPUs 0-3" in text(page, ".job-name")
        assert "busy" in text(page, "#jobs .muted")
        fleet.play("one", "hang")
        page.until(lambda p: "rank 1" in text(p, ".job p"), "whom the others wait for")
        page.until(lambda p: "pid" in text(p, ".tile[data-gpu='1'] p.faults"), "its row")
        page.until(lambda p: p.all("#headline", "data-level") == ["critical"], "critical")
        fleet.play("one", "idle")
        page.until(lambda p: "GPU-hours" in text(p, "#ended li"), "a receipt")
        assert " ago after " in text(page, "#ended strong")
        assert page.errors == []


def text(page: Page, selector: str) -> str:
    found = page.run(f"document.querySelector({selector!r})?.textContent ?? ''")
    return str(found)


def points(page: Page) -> int:
    curve = "document.querySelector('.job-curve polyline')"
    return len(str(page.run(f"{curve}.getAttribute('points')")).split())
