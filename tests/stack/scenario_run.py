"""All scenarios at once over one Prometheus and one Alertmanager."""

import json
import os
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from agent.config.settings import Settings
from agent.faults.promql import seconds
from agent.faults.thresholds import AlertThresholds, Duration
from agent.stack import programs
from agent.stack.programs import choose
from alerts.build import alertmanager, rules
from alerts.receivers import Receivers
from tests.stack.daemons import FREE, monitoring, started
from tests.stack.expected import STATION, Scenario
from tests.stack.fleet import Fleet
from tests.stack.receivers import Delivery, Inbox, mailbox, webhook
from tests.stack.running import eventually
from tests.support.patience import PATIENCE


def processors(seconds: float = 0.1) -> float:
    """Return how many processors this machine has left: the part of a core that a busy loop gets,
    times the cores but the half of one that the daemons need."""
    began, used = time.monotonic(), time.thread_time()
    while time.monotonic() - began < seconds:
        pass
    got = (time.thread_time() - used) / (time.monotonic() - began)
    return got * (len(os.sched_getaffinity(0)) - 0.5)


LEFT = processors()
SCALE = next(scale for least, scale in ((0.5, 1 / 30), (0.08, 1 / 15), (0, 1 / 6)) if least <= LEFT)
"""By which every range and `for` of the rules is shorter than users have them: nothing else is. On
a busy machine, seven agents do not answer within a second."""

SCRAPE = 30 * SCALE  # s: a quarter of the shortest range, `silent_for`
EVALUATED = f"{SCRAPE:g}s"
"""The shortest interval of a group of rules: half a minute of the users'."""

PER_PROCESS = 3

HELD_AFTER = 120 * SCALE
"""Seconds of the machines' clock: twice what `held_after` is to the windows that users
have, for two ticks are few."""

LEAST = 600 * SCALE
"""Seconds that each scenario plays at least: an alert that must not come has its time too."""

KILLED, DOWN, WATCHDOG = "killed", "DgxAgentDown", 3
"""A machine, its alert, and a number of messages of the watchdog."""


@dataclass
class ScenarioRun:
    """Record of a run: messages delivered, and pages looked at meanwhile."""

    inbox: Inbox
    began: float
    ended: dict[str, float] = field(default_factory=dict)
    metrics_while_hung: str = ""
    killed_at: float = 0.0
    held_back: Mapping[str, str] = field(default_factory=dict)  # inhibited alert: by which
    left: dict[str, set[str]] = field(default_factory=dict)  # alerts that were never over

    @property
    def watchdog(self) -> list[Delivery]:
        return [d for d in self.inbox.deliveries if d.path == "/watchdog"]

    def came(self, name: str) -> list[Delivery]:
        """Return the alerts that fired while the scenario played."""
        end = self.ended[name]
        return [d for d in self.inbox.of(name) if d.status == "firing" and d.at < end]


def texts(
    inbox: Inbox, scale: float, smtp: int = 0, silent_for: Duration = "2m"
) -> tuple[str, str]:
    """Rules and the configuration of Alertmanager as users get them, but faster."""
    address = f"http://127.0.0.1:{inbox.port}"
    shown = Receivers(webhook_url=f"{address}/alerts", watchdog_url=f"{address}/watchdog")
    if smtp:
        shown = Receivers(
            webhook_url=shown.webhook_url,
            watchdog_url=shown.watchdog_url,
            email_to="operator@example.com",
            email_from="dgx@example.com",
            email_smarthost=f"127.0.0.1:{smtp}",
            email_tls=False,
        )
    config = Settings(shown, AlertThresholds(silent_for=silent_for))
    groups = [g for text in rules(config, scale).values() for g in yaml.safe_load(text)["groups"]]
    for group in groups:
        if seconds(group["interval"]) < seconds(EVALUATED):
            group["interval"] = EVALUATED
    return json.dumps({"groups": groups}), alertmanager(config, scale)["alertmanager.yaml"]


@contextmanager
def fleets(machines: Mapping[str, str]) -> Iterator[dict[str, Fleet]]:
    """The machines, spread over a few processes; who hosts which."""
    names, processes = list(machines), -(-len(machines) // PER_PROCESS)
    with ExitStack() as stack:
        hosts: dict[str, Any] = {}
        for number in range(processes):
            part = {name: machines[name] for name in names[number::processes]}
            fleet = stack.enter_context(Fleet(1.0, part, HELD_AFTER, HELD_AFTER / 60))
            hosts |= dict.fromkeys(part, fleet)
        yield hosts


def text_of(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE) as page:
        return str(page.read().decode())


def is_ready(port: int) -> bool:
    try:
        return text_of(port, "-/ready") == "ready\n"
    except OSError:
        return False


def alerts_of(port: int, name: str) -> list[dict[str, Any]]:
    """Return the alerts that Alertmanager holds of a machine, inhibited or not."""
    query = urlencode({"filter": f'instance="{name}"'})
    found: list[dict[str, Any]] = json.loads(text_of(port, f"api/v2/alerts?{query}"))
    return found


def held_back(port: int, name: str) -> dict[str, str]:
    """The alerts of a machine that another one inhibits: name to name."""
    held = alerts_of(port, name)
    names = {alert["fingerprint"]: alert["labels"]["alertname"] for alert in held}
    return {
        alert["labels"]["alertname"]: names[by]
        for alert in held
        for by in alert["status"]["inhibitedBy"]
    }


@contextmanager
def played(folder: Path, scenarios: Mapping[str, Scenario]) -> Iterator[ScenarioRun]:
    """Everything plays, is looked at, and ends."""
    machines = {name: f"{entry.system}:{name}" for name, entry in scenarios.items()}
    with ExitStack() as stack:
        inbox = stack.enter_context(webhook())
        smtp = stack.enter_context(mailbox(inbox))
        hosts = stack.enter_context(fleets(machines))
        lone = choose(FREE).agent
        flags = ("--simulate", f"{STATION}:ecc")
        victim = stack.enter_context(
            started(programs.agent_program(lone, flags), folder / f"{KILLED}.log")
        )
        ports = {name: host.ports[name] for name, host in hosts.items()}
        shown = texts(inbox, SCALE, smtp)
        for name, port in {**ports, KILLED: lone}.items():
            eventually(partial(is_ready, port), f"the agent of {name} is ready")
        daemons = monitoring(folder, SCRAPE, {**ports, KILLED: lone}, shown)
        alertmanager_port = stack.enter_context(daemons).alertmanager
        scenario_run = ScenarioRun(inbox, time.monotonic())
        watch(scenario_run, scenarios, hosts, victim, alertmanager_port)
        await_end(scenario_run, scenarios)
        yield scenario_run


def watch(
    scenario_run: ScenarioRun,
    wanted: Mapping[str, Scenario],
    hosts: Mapping[str, Fleet],
    victim: subprocess.Popen[bytes],
    alertmanager_port: int,
) -> None:
    """End each scenario when its alerts have arrived and its time is over; see the alert of the
    killed machine inhibited, however long its hold lasts beyond the scenarios."""
    deadline = scenario_run.began + PATIENCE
    while (
        len(scenario_run.ended) < len(wanted) or not scenario_run.held_back
    ) and time.monotonic() < deadline:
        now = time.monotonic()
        if not scenario_run.killed_at and scenario_run.inbox.names(KILLED):
            victim.kill()
            scenario_run.killed_at = now
        if scenario_run.killed_at and not scenario_run.held_back:
            scenario_run.held_back = held_back(alertmanager_port, KILLED)
        for name, scenario in wanted.items():
            there = all_fire(scenario, scenario_run.inbox.firing(name).values())
            if name not in scenario_run.ended and there and now - scenario_run.began > LEAST:
                if name == "driver-hang":
                    scenario_run.metrics_while_hung = text_of(hosts[name].ports[name], "metrics")
                hosts[name].play(name, "training")
                scenario_run.ended[name] = now
        time.sleep(0.1)
    for name in wanted.keys() - scenario_run.ended.keys():
        hosts[name].play(name, "training")
        scenario_run.ended[name] = time.monotonic()


def all_fire(scenario: Scenario, firing: Collection[Delivery]) -> bool:
    """Return whether all alerts of a scenario have arrived, of all their GPUs and devices: these
    may come one after the other."""
    for alert in scenario.alerts:
        mine = [d.labels for d in firing if d.name == alert.name]
        for label, all_of in (("gpu", alert.gpus), ("device", alert.devices)):
            if not mine or not all_of <= {labels.get(label) for labels in mine}:
                return False
    return True


def await_end(scenario_run: ScenarioRun, wanted: Iterable[str]) -> None:
    """Wait until no alert is left of any scenario, the killed machine is reported, and the watchdog
    has repeated itself; or too long."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        names = scenario_run.inbox.names
        scenario_run.left = {name: left for name in wanted if (left := names(name))}
        reported = DOWN in scenario_run.inbox.names(KILLED)
        if reported and not scenario_run.left and len(scenario_run.watchdog) > WATCHDOG:
            return
        time.sleep(0.2)
