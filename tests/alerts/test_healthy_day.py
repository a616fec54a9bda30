"""A healthy machine through the real rules, by promtool: whatever happens, nothing is reported.

The rules are made faster by thirty; the machine and its agent run at their usual speed, and the
agent's own times (steps, held after a minute) are as users have them.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from agent import simulator
from agent.config.settings import Settings
from alerts.build import rules
from exporters.default_set import DefaultSet
from tests.support.alert_replay import UNASKED, Replay, Series, scrape, used
from tests.support.frozen_clock import FrozenClock
from tests.support.machine_controls import reload_driver, reset_gpu
from tests.support.machines import watched

pytestmark = pytest.mark.promtool

SYSTEM, FASTER = "gtx-1080", 30
SELDOM = ("dgx-lost-hours.yaml", "dgx-fleet-records.yaml")
"""Groups with an interval of their own, which promtool does not heed."""

EVALUATED, EVALUATED_SELDOM = 8, 60
"""So many scrapes lie between two evaluations of the rules: without those groups, and with them.
Most of the time goes into them; all but a few alerts must hold for longer."""

REBOOT = "DgxAgentDown"
"""The one alert that a day may have, while the machine reboots."""

LABEL = re.compile(r'(\w+)=\\?"([^"\\]*)')


class Part(NamedTuple):
    """Part of a day: activity for so many minutes of the rules' time, and what happens before."""

    minutes: float
    scenario: str
    before: "Callable[[Day], None] | None" = None


class Day:
    """A machine, its agent, and what Prometheus got of them: one scrape a second, which is half a
    minute of the rules' time."""

    def __init__(self) -> None:
        self.clock = FrozenClock()
        self.series: Series = {"up": []}
        self.gone: list[tuple[int, int]] = []  # scrapes without an agent
        self.start_machine()

    def start_machine(self) -> None:
        """As after a reboot: every counter begins again, and the agent's do."""
        self.machine = simulator.SimulatedSystem(simulator.parse(f"{SYSTEM}:idle"), self.clock)
        self.start_agent()

    def start_agent(self) -> None:
        """A new process of the agent on the same machine."""
        self.bench = watched(self.machine, self.clock)
        self.default = DefaultSet()

    @property
    def now(self) -> int:
        return len(self.series["up"])

    def unscraped(self, minutes: float, *, ticking: bool) -> None:
        """Scrapes fail; the agent is there, or it is not."""
        since = self.now
        for _ in range(scrapes(minutes)):
            if ticking:
                self.bench.run(1)
            else:
                self.clock.advance(1)
            scrape(None, self.series, used(), self.default)
        if not ticking:
            self.gone.append((since, self.now))

    def play(self, parts: Sequence[Part]) -> None:
        for minutes, scenario, before in parts:
            if before:
                before(self)
            if self.machine.scenario != scenario:
                self.machine.set_scenario(scenario)
            for _ in range(scrapes(minutes)):
                scrape(self.bench.run(1).latest, self.series, used(), self.default)

    def fired(self, folder: Path) -> set[str]:
        """Every alert that fired at any time, as promtool says, but for a machine that reboots."""
        files = {n: t for n, t in rules(Settings(), 1 / FASTER).items() if n != UNASKED}
        often = {name: text for name, text in files.items() if name not in SELDOM}
        length = self.now
        firing = 'timestamp(ALERTS{alertstate="firing", alertname!="DgxWatchdog"})'
        expr = " or ".join(
            f'label_replace({end}_over_time({firing}[{length}s:1s]), "end", "{end}", "", "")'
            for end in ("min", "max")
        )
        times: dict[str, list[float]] = {}
        for chosen, apart in ((often, EVALUATED), (files, EVALUATED_SELDOM)):
            said = Replay(folder, chosen, 1, apart).answer(self.series, expr, length - 1)
            shown = re.findall(r"\{([^}]*alertname[^}]*)\} (\S+E[+-]\d+)", said)
            assert shown or not said, said
            for text, at in shown:
                times.setdefault(dict(LABEL.findall(text))["alertname"], []).append(float(at))
        return {name for name, at in times.items() if not self.excused(name, at)}

    def excused(self, name: str, times: Sequence[float]) -> bool:
        """Return whether the alert reports an agent that is gone, while it is."""
        minute = scrapes(1)
        return name == REBOOT and any(
            since <= min(times) and max(times) <= until + minute for since, until in self.gone
        )


def scrapes(minutes: float) -> int:
    """Scrapes in so many minutes of the rules' time; one at least."""
    return max(1, round(minutes * 60 / FASTER))


def restart(day: Day) -> None:
    """The agent ends, and a new one is there for the next scrape but one."""
    day.unscraped(0.25, ticking=False)
    day.start_agent()


def reboot(day: Day) -> None:
    day.unscraped(6, ticking=False)
    day.start_machine()


def reload(day: Day) -> None:
    """The driver is loaded again, with the agent stopped meanwhile, as the README asks."""
    day.unscraped(1.25, ticking=False)
    reload_driver(day.machine)
    day.start_agent()


HAPPENINGS: tuple[Callable[[Day], None], ...] = (
    restart,
    lambda day: day.unscraped(0.25, ticking=True),  # one scrape
    reboot,
    lambda day: day.unscraped(0.5, ticking=True),  # two scrapes
    lambda day: reset_gpu(day.machine, 0),
    reload,
    lambda day: reload_driver(day.machine),  # beneath an agent that runs
)


def judged(folder: Path, *parts: Part) -> set[str]:
    day = Day()
    day.play(parts)
    return day.fired(folder)


def test_nothing_is_reported_of_a_healthy_machine(tmp_path: Path) -> None:
    hours = [
        part
        for happening in HAPPENINGS
        for part in (Part(12, "idle", happening), Part(12, "training", happening))
    ]
    assert judged(tmp_path, *hours) == set()


def test_what_is_wrong_is_reported(tmp_path: Path) -> None:
    """The judge is awake."""
    assert judged(tmp_path, Part(20, "idle"), Part(20, "training+xid-31")) == {"DgxGpuXid"}
