"""Each scenario, seen by a person: the right sentence, the right GPU, the right path."""

import time
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

SHORT = {
    *("starved-disk", "nvlink-saturated", "driver-hang", "nvlink-down", "gpu-lost"),
    *("starved-peer", "hang", "port-degraded", "training", "held", "xid"),
}
"""Scenarios of the short form, each on one machine: each state, and each kind of mark on GPU, path
and map."""

WATCH = Path(__file__).with_name("watch.js").read_text(encoding="utf-8")
"""Notes, at each change of the sentence, how old the tick is that it reports."""


@dataclass
class Actor:
    """A page, what its machine has yet to play, and how long each scenario took to be seen (s).
    Both end with the last: machines that go on ticking take most of a processor."""

    name: str
    expectations: list[Shown]
    page: Page
    fleet: Fleet
    since: float = 0.0
    took: dict[str, float] = field(default_factory=dict)
    lags: list[float] = field(default_factory=list)

    def start(self) -> None:
        self.page.go(self.fleet.page(self.name))
        self.page.until(partial(shows, PAGE_MACHINES[self.name].gpus), f"tiles of {self.name}")
        self.page.run(WATCH)
        self.play()

    def play(self) -> None:
        """The next scenario, if there is one."""
        if self.expectations:
            self.fleet.play(self.name, self.expectations[0].scenario)
            self.since = time.monotonic()
            return
        self.lags = self.page.run("lags")
        self.page.go("about:blank")
        self.fleet.end()

    def look(self) -> None:
        """Go on where the page shows what it should."""
        misses = self.expectations[0].misses(self.page)
        waited = time.monotonic() - self.since
        if not misses:
            self.took[self.expectations.pop(0).scenario] = waited
            self.play()
        elif waited > PATIENCE:
            said = self.page.text("#headline")
            scenario = self.expectations[0].scenario
            pytest.fail(f"{self.name}, {scenario}: {'; '.join(misses)}; it says: {said}")


@pytest.mark.browser
def test_the_page_says_and_marks_what_each_scenario_is(
    request: pytest.FixtureRequest, chromium: Chromium
) -> None:
    whole, left = request.config.getoption("--nightly"), set(SHORT)
    with ExitStack() as stack:
        actors = []
        for name, machine in PAGE_MACHINES.items():
            shown = [one for one in machine.expectations if whole or one.scenario in left]
            left -= {one.scenario for one in shown}
            if shown:
                fleet = stack.enter_context(Fleet(1.0, {name: f"{machine.system}:training"}))
                actors.append(Actor(name, shown, stack.enter_context(Page(chromium)), fleet))
        for actor in actors:
            actor.start()
        while waiting := [actor for actor in actors if actor.expectations]:
            for actor in waiting:
                actor.look()
            time.sleep(0.3)
        errors = [text for actor in actors for text in actor.page.errors]
    report(actors)
    assert errors == []


def shows(gpus: int, page: Page) -> bool:
    return len(page.all(".tile", "data-gpu")) == gpus


def report(actors: list[Actor]) -> None:
    for actor in actors:
        for scenario, took in actor.took.items():
            print(f"{actor.name:8} {scenario:20} seen after {took:5.1f} s")
    lags = sorted(lag for actor in actors for lag in actor.lags)
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
