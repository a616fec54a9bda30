"""A healthy day of a machine through the real rules, by promtool: nothing arrives.

    python -m tests.alerts.healthy_day                       # every system, one after the other
    python -m tests.alerts.healthy_day dgx-h100 k40          # these
    python -m tests.alerts.healthy_day --faster 1 gtx-1080   # a day of a day's length

prints a line for each and exits 1 where an alert fired. The rules are made faster by twelve, so
that two hours of the machine's clock are a day of theirs; the machine and its agent run at their
usual speed, and the agent's own times (steps, held after a minute) are as users have them.
"""

import re
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import NamedTuple

from agent import simulator
from agent.cli.assembly import Agent, Hardware
from agent.config.settings import Settings
from agent.simulator import models, scenarios
from alerts.build import rules
from tests.support.alert_replay import UNASKED, Replay, Series, scrape, used
from tests.support.frozen_clock import FrozenClock
from tests.support.machine_controls import reload_driver, reset_gpu
from tests.support.machines import AgentBench

FASTER = 12
SCRAPED = 15.0
"""Seconds between two scrapes, as users have them."""

SELDOM = ("dgx-lost-hours.yaml", "dgx-fleet-records.yaml")
"""Groups with an interval of their own, which promtool does not heed."""

EVALUATED, EVALUATED_SELDOM = 8, 60
"""So many scrapes lie between two evaluations of the rules: without those groups, and with them.
Most of the time goes into them; all but a few alerts must hold for longer."""

MIG = "+mig"
MACHINES = (*models.ALL, f"dgx-a100{MIG}", f"dgx-h100{MIG}")
"""Every system, and two whose first GPU is divided all day."""

REBOOT = "DgxAgentDown"
"""The one alert that a day may have, while the machine reboots."""

LABEL = re.compile(r'(\w+)=\\?"([^"\\]*)')
LEFT_OUT = ("alertname", "alertstate", "end", "instance", "job")

Action = Callable[["Day"], None]


class Part(NamedTuple):
    """Part of a day: activity for so many minutes of the rules' time, and what happens before."""

    minutes: float
    scenario: str
    before: Action | None = None


class Fired(NamedTuple):
    """An alert, and from when to when it did (hours of the rules' time)."""

    name: str
    labels: str
    first: float
    last: float


@dataclass
class Day:
    """A machine, its agent, and what Prometheus got of them."""

    name: str  # system, with what is joined to all that it plays
    faster: int = FASTER
    series: Series = field(default_factory=lambda: {"up": []})
    gone: list[tuple[float, float]] = field(default_factory=list)  # hours without an agent

    def __post_init__(self) -> None:
        self.clock = FrozenClock()
        self.every = max(1, round(SCRAPED / self.faster))
        self.start_machine()

    def start_machine(self) -> None:
        """As after a reboot: every counter begins again, and the agent's do."""
        spec = f"{self.name.partition('+')[0]}:{self.played('idle')}"
        self.machine = simulator.build(simulator.parse(spec), self.clock)
        self.start_agent()

    def start_agent(self) -> None:
        """A new process of the agent on the same machine."""
        hardware = Hardware(lambda: self.machine.nvml, self.machine.host, simulated=True)
        agent = Agent(Settings(), hardware, self.clock, inline=True)
        self.bench = AgentBench(agent, self.clock, self.machine)

    def played(self, scenario: str) -> str:
        """Return the part of the scenario that this system can play, with the faults joined to
        all."""
        system, joined, fault = self.name.partition("+")
        cannot = scenarios.missing(models.ALL[system], scenario)
        return f"{'training' if cannot else scenario}{joined}{fault}"

    @property
    def now(self) -> float:
        """Hours of the rules' time."""
        return len(self.series["up"]) * self.every * self.faster / 3600

    def ticks(self, minutes: float) -> int:
        """Scrapes in so many minutes of the rules' time; one at least."""
        return max(1, round(minutes * 60 / self.faster / self.every))

    def run(self, minutes: float) -> None:
        """The agent ticks and is scraped."""
        for _ in range(self.ticks(minutes)):
            scrape(self.bench.run(self.every).agent.poller.latest, self.series, used())

    def unscraped(self, minutes: float, *, ticking: bool) -> None:
        """Scrapes fail; the agent is there, or it is not."""
        since = self.now
        for _ in range(self.ticks(minutes)):
            if ticking:
                self.bench.run(self.every)
            else:
                self.clock.advance(self.every)
            scrape(None, self.series, used())
        if not ticking:
            self.gone.append((since, self.now))

    def play(self, parts: Sequence[Part]) -> None:
        for minutes, scenario, before in parts:
            if before:
                before(self)
            if self.machine.scenario != self.played(scenario):
                self.machine.set_scenario(self.played(scenario))
            self.run(minutes)

    def fired(self, folder: Path) -> list[Fired]:
        """Every alert that fired at any time, as promtool says."""
        files = {n: t for n, t in rules(Settings(), 1 / self.faster).items() if n != UNASKED}
        often = {name: text for name, text in files.items() if name not in SELDOM}
        length = len(self.series["up"]) * self.every
        firing = 'timestamp(ALERTS{alertstate="firing", alertname!="DgxWatchdog"})'
        expr = " or ".join(
            f'label_replace({end}_over_time({firing}[{length}s:{self.every}s]), "end", "{end}", '
            '"", "")'
            for end in ("min", "max")
        )
        times: dict[tuple[str, str], list[float]] = {}
        for chosen, apart in ((often, EVALUATED), (files, EVALUATED_SELDOM)):
            replay = Replay(folder, chosen, self.every, apart * self.every)
            said = replay.answer(self.series, expr, length - 1)
            shown = re.findall(r"\{([^}]*alertname[^}]*)\} (\S+E[+-]\d+)", said)
            assert shown or not said, said
            for text, at in shown:
                labels = dict(LABEL.findall(text))
                rest = " ".join(f"{k}={v}" for k, v in labels.items() if k not in LEFT_OUT)
                hours = float(at) * self.faster / 3600
                times.setdefault((labels["alertname"], rest), []).append(hours)
        return [Fired(*key, min(at), max(at)) for key, at in sorted(times.items())]

    def excused(self, alert: Fired) -> bool:
        """Return whether the alert reports an agent that is gone, while it is."""
        minute = 1 / 60
        return alert.name == REBOOT and any(
            since <= alert.first and alert.last <= until + minute for since, until in self.gone
        )


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


def reload_beneath(day: Day) -> None:
    """The driver is loaded again beneath an agent that runs."""
    reload_driver(day.machine)


def reset(day: Day) -> None:
    reset_gpu(day.machine, 0)


def miss_one(day: Day) -> None:
    day.unscraped(0.25, ticking=True)


def miss_two(day: Day) -> None:
    day.unscraped(0.5, ticking=True)


NIGHT = (Part(60, "idle"), Part(180, "training"))
MORNING = (
    Part(30, "training", restart),
    Part(30, "training", miss_one),
    Part(20, "idle"),
    Part(40, "idle", reboot),
)
JOBS = (Part(8, "training"), Part(4, "idle")) * 10
NOON = (Part(120, "exposed-communication"), Part(30, "training", miss_two), *JOBS)
AFTERNOON = (
    Part(30, "idle", reset),
    Part(120, "training"),
    Part(30, "idle", reload),
    Part(120, "training"),
    Part(30, "idle", reload_beneath),
)
DAY = (*NIGHT, *MORNING, *NOON, *AFTERNOON, Part(472.5, "training", restart))
"""24 hours, the minutes without an agent or a scrape included."""


def processor_seconds() -> float:
    """Of this process and of promtool."""
    return sum(sum(getrusage(who)[:2]) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))


def judge(name: str, faster: int = FASTER, parts: Sequence[Part] = DAY) -> list[Fired]:
    """Return the alerts that fired without reason; print a line on what was played."""
    begun, day = processor_seconds(), Day(name, faster)
    day.play(parts)
    recorded = processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        fired = day.fired(Path(folder))
    wrong = [alert for alert in fired if not day.excused(alert)]
    print(
        f"{'WRONG' if wrong else 'ok   '} {name}: {day.now:.1f} h, {len(day.series)} series; "
        f"alerts: {len(fired) - len(wrong)} of the reboot, {len(wrong)} others; CPU: machine "
        f"{recorded - begun:.0f} s, rules {processor_seconds() - recorded:.0f} s",
        flush=True,
    )
    for alert in wrong:
        print(f"      {alert.first:.2f} to {alert.last:.2f} h: {alert.name} {alert.labels}")
    return wrong


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.alerts.healthy_day")
    parser.add_argument("machines", nargs="*", default=MACHINES)
    parser.add_argument("--faster", type=int, default=FASTER, help="than a day, so many times")
    asked = parser.parse_args()
    wrong = [alert for name in asked.machines for alert in judge(name, asked.faster)]
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
