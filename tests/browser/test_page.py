"""The page itself: its policy, who can use it, and on what width. No agent runs."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.browser.axe import grave
from tests.browser.page import NARROW, Page
from tests.browser.served_page import OPEN, Serve, arrive, send, words
from tests.browser.status_server import Json, example, later
from tests.browser.statuses import STATUSES, grown, starved

pytestmark = pytest.mark.browser

PHONE = (360, 740)

FOCUSED = "document.activeElement.textContent"
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_the_policy_is_set_and_holds(page: Page, served: Serve) -> None:
    server = served(example())
    arrive(page, server)
    policy = {k.lower(): v for k, v in page.headers[server.address].items()}
    assert "default-src 'none'" in policy["content-security-policy"]
    assert "unsafe" not in policy["content-security-policy"]
    caught, ran = page.run(Path(__file__).with_name("caught.js").read_text(encoding="utf-8"))
    wanted = {"script-src-elem", "style-src-elem", "img-src", "frame-src", "connect-src"}
    assert wanted <= set(caught)
    assert not ran
    page.errors.clear()  # what the policy caught


@pytest.mark.parametrize("name", STATUSES)
def test_every_machine_fits_every_width(page: Page, served: Serve, name: str) -> None:
    status = STATUSES[name]()
    server = served(status)
    page.resize(PHONE)
    arrive(page, server)
    for size in (PHONE, NARROW, (1300, 900), (1920, 1080)):
        page.resize(size)
        assert page.run(SIDEWAYS) <= 0, size
        if status["gpus"]:
            page.run("document.querySelector('.tile button').click()")
            assert page.run("document.querySelector('#evidence').scrollWidth") <= size[0], size
            page.run("document.querySelector('#evidence').close()")
    texts = [one["text"] for one in status["headline"]]
    assert words(page, "#headline > li > div > .words") == texts
    order = [gpu for group in status["groups"] for gpu in group["gpus"]]
    assert page.all(".tile", "data-gpu") == [str(gpu) for gpu in order]
    assert page.text("#gpus").count("undefined") == 0
    own = server.address, "about:", "data:"
    assert [url for url in page.requests if not url.startswith(own)] == []


@pytest.mark.parametrize("name", ["lost", "starved", "none"])
def test_the_page_is_accessible(page: Page, served: Serve, name: str) -> None:
    status = STATUSES[name]()
    arrive(page, served(status))
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for theme in ("light", "dark"):
        page.use_theme(theme)
        assert grave(page) == []
        if status["gpus"]:
            page.run("document.querySelector('.tile button').click()")
            assert page.run(OPEN)
            assert grave(page) == []
            page.run("document.querySelector('#evidence').close()")


def test_the_runbook_is_read_on_a_phone(page: Page, served: Serve) -> None:
    page.resize(PHONE)
    page.go(f"{served(example()).address}runbook.html")
    page.until(lambda p: p.run("document.querySelectorAll('h2').length > 5"), "runbook")
    for theme in ("light", "dark"):
        page.use_theme(theme)
        assert grave(page) == []
    assert page.run(SIDEWAYS) <= 0


@pytest.mark.parametrize("text", [lambda status: status, grown], ids=["as it is", "a word more"])
@pytest.mark.parametrize("size", [(1000, 800), NARROW], ids=["desktop", "phone"])
def test_the_first_screen_answers(
    page: Page, served: Serve, size: tuple[int, int], text: Callable[[Json], Json]
) -> None:
    """Without scrolling: the machine, what is wrong, the first step, and each of eight GPUs."""
    page.resize(size)
    arrive(page, served(text(starved())))
    below = """(selector) => Math.max(...[...document.querySelectorAll(selector)]
      .map((e) => e.getBoundingClientRect().bottom)) - innerHeight"""
    for selector in ("#title", "#headline", "#headline .do", ".lead", ".row"):
        assert page.run(f"({below})({selector!r})") <= 0, selector


def test_a_page_without_a_stream_is_whole(page: Page, served: Serve) -> None:
    """An open stream would keep a browser's virtual time from passing."""
    server = served(example())
    page.go(f"{server.address}?still")
    page.until(lambda p: p.all("body", "data-feed") == ["still"], "drawn")
    assert page.text("#feed-words").startswith("as of ")
    assert len(page.all(".tile", "data-gpu")) == 8
    assert page.run("""document.querySelector('.tile canvas').getContext('2d')
      .getImageData(0, 0, 9999, 9).data.some(Boolean)""")
    assert not [url for url in page.requests if "api/v1/stream" in url]


def test_a_keyboard_is_enough(page: Page, served: Serve) -> None:
    arrive(page, served(example()))
    for _ in range(20):  # links and folded findings come first
        page.press("Tab")
        if page.run(FOCUSED) == "GPU 2":
            break
    assert page.run(FOCUSED) == "GPU 2"
    page.press("Enter")
    page.until(lambda p: p.run(OPEN), "the evidence opens")
    assert page.text("#evidence-title") == "GPU 2"
    assert page.run("document.querySelector('#evidence').contains(document.activeElement)")
    page.press("Tab")
    assert page.run("document.activeElement.closest('.tile')") is None, "the rest is out of reach"
    page.press("Escape")
    page.until(lambda p: not p.run(OPEN), "the evidence closes")
    assert page.run(FOCUSED) == "GPU 2"


def test_nodes_are_used_again(page: Page, served: Serve) -> None:
    server = served(example())
    arrive(page, server)
    page.run("for (const node of document.querySelectorAll('.tile, tr, .node')) node.known = true")
    page.run("""document.querySelectorAll('.paths details').forEach((one) => {
      one.open = !one.open; one.dataset.was = one.open; })""")
    send(page, server, later(server.status))
    fresh = "[...document.querySelectorAll('.tile, tr, .node')].filter((n) => !n.known).length"
    assert page.run(fresh) == 0
    assert page.run("""[...document.querySelectorAll('.paths details')]
      .every((one) => String(one.open) === one.dataset.was)"""), "a reader's folds stay"


def test_nothing_is_drawn_while_the_page_is_hidden(page: Page, served: Serve) -> None:
    server = served(example())
    arrive(page, server)
    turn = """(hidden) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.run(f"({turn})(true)")
    page.run("new Promise((done) => setTimeout(done, 300))")  # what was due is drawn
    hidden = later(server.status)
    hidden["headline"][0]["text"] = "seen later"
    server.show(hidden)
    page.run("new Promise((done) => setTimeout(done, 1000))")
    assert "seen later" not in page.text("#headline")
    page.run(f"({turn})(false)")
    page.until(lambda p: "seen later" in p.text("#headline"), "it catches up")


def test_screen_readers_hear_a_headline_when_its_meaning_changes(page: Page, served: Serve) -> None:
    server = served(starved())
    arrive(page, server)
    before = page.text("#spoken")
    assert before.startswith("8 GPUs starved by disk")
    moved = later(server.status)
    moved["headline"][0]["text"] = "8 GPUs starved by disk, 63 % of the last 15 min"
    send(page, server, moved)
    assert "63 %" in words(page, "#headline .words")[0]
    assert page.text("#spoken") == before
    other = later(moved)
    other["groups"][0] |= {"cause": "network"}
    other["headline"][0]["text"] = "8 GPUs starved by the network"
    send(page, server, other)
    assert page.text("#spoken") == "8 GPUs starved by the network"


def test_links_open_a_gpu_and_point_at_a_job_and_a_time(page: Page, served: Serve) -> None:
    status = example()
    arrive(page, served(status), "#gpu=3")
    page.until(lambda p: p.run(OPEN), "the evidence opens")
    page.run("document.querySelector('#evidence').close()")
    page.until(lambda p: not p.run("location.hash"), "the address follows")
    page.run(f"location.hash = '#job={status['jobs'][0]['ids'][-1]}'")
    pointed = "[data-pointed]:not(#gpus)"
    page.until(lambda p: p.all(pointed, "data-id") == ["1234"], "a job by its process")
    page.run("location.hash = '#job=1230'")
    page.until(lambda p: p.all(pointed, "data-id") == ["1230"], "one that ended")
    moment = datetime.fromisoformat(status["at"]) - timedelta(seconds=60)
    page.run(f"location.hash = '#t={moment.isoformat().replace('+00:00', 'Z')}'")
    page.until(lambda p: "GPU 7, " in p.text("#tip"), "every GPU at that time")
    assert "1 min ago: busy 100 %" in page.text("#tip")
    clock = page.run(f"new Date('{moment.isoformat()}').toTimeString().slice(0, 5)")
    page.run(f"location.hash = '#t={clock}'")
    page.until(lambda p: f"{clock}:00, " in p.text("#tip"), "a time of day")
    page.run("location.hash = '#t=2020-01-01T00:00:00Z'")
    page.until(lambda p: "not within the last 15 min" in p.text("#tip"), "long ago")
    page.run("location.hash = '#job=none-such'")
    page.until(lambda p: "No job none-such" in p.text("#link"), "that there is none")
