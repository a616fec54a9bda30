"""From condition to delivery: how long it takes until somebody knows.

    python -m tests.stack.latency 15

measures with the scrape interval that users have and their very rules, in about six minutes. With
a shorter interval all times of the rules are shorter by the same factor.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from agent.stack import programs
from agent.stack.programs import choose
from tests.stack.daemons import FREE, Fleet, monitoring, started
from tests.stack.expected import STATION
from tests.stack.receivers import Inbox, webhook
from tests.stack.running import eventually
from tests.stack.scenario_run import is_ready, texts

USUAL = 15.0  # s between two scrapes
LOSS = 5.0  # s after its beginning, the scenario loses its GPU, and hangs its driver

CONDITIONS = {"killed": "DgxAgentDown", "gpu-lost": "DgxGpuMissing", "driver-hang": "DgxAgentBlind"}
"""Events, and the alert that must report each."""


def measure(interval: float, folder: Path) -> dict[str, float]:
    """Seconds from each condition to the delivery of its alert."""
    scale = interval / USUAL
    names = [name for name in CONDITIONS if name != "killed"]
    with ExitStack() as stack:
        inbox = stack.enter_context(webhook())
        machines = dict.fromkeys(names, f"{STATION}:training")
        fleet = stack.enter_context(Fleet(1.0, machines))
        lone = choose(FREE).agent
        agent = programs.agent_program(lone, ("--simulate", f"{STATION}:training"))
        victim = stack.enter_context(started(agent, folder / "killed.log"))
        targets = {**fleet.ports, "killed": lone}
        for name, port in targets.items():
            eventually(partial(is_ready, port), 120, f"the agent of {name} is ready")
        stack.enter_context(monitoring(folder, interval, targets, texts(inbox, scale)))
        time.sleep(6 + 4 * interval)  # Prometheus begins to scrape after 5 s
        began = time.monotonic()
        for name in names:
            fleet.set_scenario(name, name)
        victim.kill()
        longest = 240 + 300 * scale
        eventually(lambda: all(map(_delivered(inbox), CONDITIONS)), longest, "all are delivered")
        struck = {name: began + (LOSS if name in names else 0.0) for name in CONDITIONS}
        return {name: inbox.of(name)[0].at - struck[name] for name in CONDITIONS}


def _delivered(inbox: Inbox) -> Callable[[str], bool]:
    return lambda name: CONDITIONS[name] in {d.name for d in inbox.of(name)}


def table(interval: float, found: dict[str, float]) -> str:
    """One line a condition."""
    lines = [f"from condition to delivery, scraped each {interval:g} s:"]
    lines += [f"  {name:12} {CONDITIONS[name]:14} {found[name]:6.1f} s" for name in CONDITIONS]
    return "\n".join(lines)


if __name__ == "__main__":
    every = float(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        print(table(every, measure(every, Path(place))))
