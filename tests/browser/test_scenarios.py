"""Each scenario, seen by a person: the right sentence, the right GPU, the right path."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from agent.simulator.scenarios import NAMES, TOUR
from tests.browser.chromium import Chromium
from tests.browser.expectations import PAGE_MACHINES, Shown
from tests.browser.page import Page
from tests.stack.fleet import Fleet
from tests.support.patience import PATIENCE

SPEED = 1.0
PROCESSES = 2

SHORT = {
    *("starved-disk", "nvlink-saturated", "driver-hang", "nvlink-down", "gpu-lost"),
    *("starved-peer", "hang", "port-degraded", "training", "held", "xid"),
}
"""Scenarios of the short form: each state, and each kind of mark on GPU, path and map."""

WATCH = Path(__file__).with_name("watch.js").read_text(encoding="utf-8")
"""Notes, at each change of the sentence, how old the tick is that it reports."""


@dataclass
class Actor:
    """A page, what its machine has yet to play, and how long each scenario took to be seen (s)."""

    page: Page
    fleet: Fleet
    expectations: list[Shown]
    since: float = 0.0
    took: dict[str, float] = field(default_factory=dict)


@pytest.mark.browser
def test_the_page_says_and_marks_what_each_scenario_is(
    request: pytest.FixtureRequest, chromium: Chromium, machines: Callable[..., Fleet]
) -> None:
    whole = request.config.getoption("--nightly")
    names = list(PAGE_MACHINES)
    with ExitStack() as stack:
        actors = {}
        for number in range(PROCESSES):
            part = names[number::PROCESSES]
            fleet = machines(SPEED, **{n: f"{PAGE_MACHINES[n].system}:training" for n in part})
            for name in part:
                page = stack.enter_context(Page(chromium))
                page.go(fleet.page(name))
                shown = PAGE_MACHINES[name].expectations
                actors[name] = Actor(
                    page, fleet, [one for one in shown if whole or one.scenario in SHORT]
                )
        for name, actor in actors.items():
            actor.page.until(partial(shows, PAGE_MACHINES[name].gpus), f"tiles of {name}")
            actor.page.run(WATCH)
        perform(actors)
        lags = [lag for actor in actors.values() for lag in actor.page.run("lags")]
        errors = [text for actor in actors.values() for text in actor.page.errors]
    report(actors, lags)
    assert errors == []


def shows(gpus: int, page: Page) -> bool:
    return len(page.all(".tile", "data-gpu")) == gpus


def perform(actors: dict[str, Actor]) -> None:
    """All machines play at once, each its own scenarios in turn."""
    for name, actor in actors.items():
        start(name, actor)
    while waiting := {name: actor for name, actor in actors.items() if actor.expectations}:
        for name, actor in waiting.items():
            shown = actor.expectations[0]
            misses = shown.misses(actor.page)
            waited = time.monotonic() - actor.since
            if not misses:
                actor.took[shown.scenario] = waited
                actor.expectations.pop(0)
                start(name, actor)
            elif waited > PATIENCE:
                said = actor.page.text("#headline")
                pytest.fail(f"{name}, {shown.scenario}: {'; '.join(misses)}; it says: {said}")
        time.sleep(0.3)


def start(name: str, actor: Actor) -> None:
    if actor.expectations:
        actor.fleet.play(name, actor.expectations[0].scenario)
        actor.since = time.monotonic()


def report(actors: dict[str, Actor], lags: list[float]) -> None:
    for name, actor in actors.items():
        for scenario, took in actor.took.items():
            theirs = took * SPEED
            print(f"{name:8} {scenario:20} seen after {took:5.1f} s, {theirs:4.0f} s of its clock")
    lags.sort()
    print(
        f"sentences changed {len(lags)} times; on the page {lags[len(lags) // 2]:.2f} s after "
        f"their tick, at most {lags[-1]:.2f} s"
    )


def test_every_scenario_is_seen_on_some_machine() -> None:
    played = {
        shown.scenario
        for page_machine in PAGE_MACHINES.values()
        for shown in page_machine.expectations
    }
    assert played == set(NAMES) - {TOUR}
    assert {page_machine.gpus for page_machine in PAGE_MACHINES.values()} == {1, 4, 8, 16}
