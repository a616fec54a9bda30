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
        assert "busy" in text(page, ".job p.muted")
        fleet.play("one", "hang")
        page.until(lambda p: "rank 1" in text(p, ".job p"), "whom the others wait for")
        page.until(lambda p: "pid" in text(p, ".tile[data-gpu='1'] .fault"), "its row")
        page.until(lambda p: p.all("#headline", "data-level") == ["wrong"], "critical")
        fleet.play("one", "idle")
        page.until(lambda p: "GPU-hours" in text(p, ".receipts li"), "a receipt")
        assert " ago after " in text(page, ".receipts strong")
        assert page.errors == []


def text(page: Page, selector: str) -> str:
    found = page.run(f"document.querySelector({selector!r})?.textContent ?? ''")
    return str(found)


def points(page: Page) -> int:
    return len(
        str(
            page.run("document.querySelector('.job-curve polyline').getAttribute('points')")
        ).split()
    )


MANY = """(async (count, wanted, by) => {
  const { makeJobTools, showJobs } = await import("./jobs.js");
  const jobs = [...Array(count).keys()].map((n) => ({
    id: `${n}`, ids: [`${n}`], title: `train-${n}.py`, user: "", sentence: "at work", level: "ok",
    gpus: `${n}`, seconds: 60 * n, rates: [], shares: [], lost: (7 * n) % count, gpu_seconds: 600,
    money: "", saving: "", before: null, cost: null,
  }));
  const tools = makeJobTools(() => {}), list = document.querySelector("#jobs");
  [tools.children[0].value, tools.children[1].value] = [wanted, by];
  showJobs(list, jobs, tools, 1e9);
  if (!document.querySelector(".trial")) { tools.classList.add("trial"); list.before(tools); }
  return [tools.hidden, [...list.children].map((node) => node.dataset.id).join(" ")];
})"""


@pytest.mark.browser
def test_many_jobs_are_sorted_and_filtered(
    chromium: Chromium, machines: Callable[..., Fleet]
) -> None:
    fleet = machines(1.0, one="dgx-station-v100:idle")
    with Page(chromium) as page:
        page.go(fleet.page("one") + "?still")
        assert page.run(f'{MANY}(7, "train-3", "lost")') == [True, "0 1 2 3 4 5 6"], "few"
        assert page.run(f'{MANY}(9, "", "GPU")') == [False, "0 1 2 3 4 5 6 7 8"]
        assert page.run(f'{MANY}(9, "", "lost")') == [False, "5 1 6 2 7 3 8 4 0"]
        assert page.run(f'{MANY}(9, "gpu 3", "lost")') == [False, "3"]
        assert page.errors == []
