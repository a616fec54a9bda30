"""Every tenth scenario with a fault, in Chromium: whole, with the colours of its status."""

import json

import msgspec
import pytest

from tests.browser.page import Page
from tests.browser.served_page import Serve, arrive, words
from tests.support.matrix import BAD_INPUT, PAIRS, played, tried
from tests.support.nightly import shortly
from tests.support.statuses import Shown

pytestmark = pytest.mark.browser

EMPTY = """[...document.querySelectorAll("main li, main p, main h3")].filter((e) => e.offsetHeight
  && e.checkVisibility() && !e.textContent.trim() && !e.querySelector("canvas, svg, input"))
  .map((e) => e.outerHTML.slice(0, 200))"""
"""Lines that take place and have nothing in them."""


@pytest.mark.parametrize("name", tried(PAIRS[::11]))
def test_a_scenario_with_a_fault_is_drawn(page: Page, served: Serve, name: str) -> None:
    drawn(page, served, played(name))


@pytest.mark.parametrize("name", shortly(BAD_INPUT, ("all GPUs are lost", "seventy-two GPUs")))
def test_an_odd_machine_is_drawn(page: Page, served: Serve, name: str) -> None:
    drawn(page, served, BAD_INPUT[name]().run(2).skip(8))
    assert page.run("document.documentElement.scrollHeight") < 3600  # pixels: a line for each GPU


def drawn(page: Page, served: Serve, machine: Shown) -> None:
    """Draw a machine, and look for holes and other colours than those of its status."""
    status = json.loads(msgspec.json.encode(machine.status))
    arrive(page, served(status))
    said = [one["text"].replace("`", "") for one in status["headline"]]  # commands are marked
    assert words(page, "#headline > li > div > .words") == said
    for hole in ("undefined", "null", "NaN", "[object"):
        assert hole not in page.text("main")
    assert page.run(EMPTY) == []
    levels = [one["level"] or "unknown" for one in status["headline"]]
    assert page.all("#headline > li", "data-level") == levels
    groups = [one["level"] or "unknown" for one in status["groups"]]
    assert page.all("#gpus li.lead", "data-level") == groups
