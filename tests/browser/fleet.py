"""Simulated machines with their live pages, in one process, as `run` serves them.

    python -m tests.browser.fleet SPEED HELD_AFTER NAME=SYSTEM:SCENARIO ...

prints `NAME PORT` for each, and then obeys lines `NAME SCENARIO` on its standard input until that
is closed. What agents read each minute is read each 4 s here. The system `sixteen` is a box with 16
GPUs, which no DGX of the simulation has. `SYSTEM:training*200,idle*30` has lived through so many
seconds of each when it is first seen, and goes on in real time.
"""

import asyncio
import logging
import sys
from dataclasses import dataclass, replace

from agent import simulator
from agent.cli.assembly import Agent, Hardware
from agent.cli.options import view_of
from agent.clock import Clock, SystemClock
from agent.config.settings import Settings
from agent.diagnosis.thresholds import Thresholds
from agent.polling import intervals
from agent.simulator import models
from exporters.http import AgentPages
from exporters.live.feed import Feed
from exporters.prometheus import Exposition
from exporters.server import serve
from tests.browser import history
from tests.stack import fleet

SIXTEEN = replace(
    models.ALL["dgx-a100"],
    name="sixteen",
    product="Two trays of eight",
    vendor="Somebody",
    buses=tuple(range(0x10, 0x20)),
)


MINUTE = 4.0
"""Seconds of the machines' clock after which links, ECC counters and ports are read again."""


@dataclass(frozen=True)
class Member:
    """One machine with the agent that watches it, and its page."""

    played: fleet.Member
    feed: Feed
    lived: history.HistoryClock | None = None  # stands still until the machine is served


async def member(spec: str, speed: float, config: Settings) -> Member:
    name, _, scenario = spec.partition(":")
    phases = history.phases_of(scenario)
    lived = history.HistoryClock()
    clock: Clock = lived if phases else SystemClock(speed)
    machine = simulator.build(simulation(name, phases[0][0] if phases else scenario), clock)
    hardware = Hardware(lambda: machine.nvml, machine.host, simulated=True)
    agent = Agent(config, hardware, clock, inline=bool(phases))
    feed = Feed(view_of(agent, hardware))
    agent.poller.listeners.append(feed)
    played = fleet.Member(machine, agent)
    if phases:
        await history.run_phases(played, lived, phases)
    return Member(played, feed, lived if phases else None)


def simulation(name: str, scenario: str) -> simulator.Simulation:
    if name == SIXTEEN.name:
        return simulator.Simulation(SIXTEEN, SIXTEEN.driver, scenario)
    return simulator.parse(f"{name}:{scenario}")


async def listen(name: str, one: Member) -> asyncio.Task[None]:
    """Serve and tick as `run` does."""
    agent = one.played.agent
    poller, clock = agent.poller, agent.clock
    exposition = Exposition(lambda: poller.latest, clock.monotonic, process=False)
    app = AgentPages(
        exposition, lambda: poller.latest, awaited=poller.waiting_for, feed=one.feed
    ).application()
    server = await serve(app, "127.0.0.1", 0)
    agent.start()
    if one.lived:
        one.lived.go()
    print(name, server.addresses[0][1], flush=True)
    return asyncio.create_task(poller.run())


async def serve_all(speed: float, held_after: float, specs: dict[str, str]) -> None:
    config = Settings(Thresholds(held_after=held_after))
    members = {name: await member(spec, speed, config) for name, spec in specs.items()}
    ticking = [await listen(name, one) for name, one in members.items()]
    obeying = asyncio.create_task(fleet.obey({name: one.played for name, one in members.items()}))
    done, _ = await asyncio.wait({obeying, *ticking}, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # many threads, one interpreter: a page must not wait for long
    logging.basicConfig(level="CRITICAL", handlers=[logging.NullHandler()])
    intervals.LINKS = intervals.ECC = MINUTE
    speed, held_after, *pairs = sys.argv[1:]
    asyncio.run(
        serve_all(float(speed), float(held_after), dict(pair.split("=", 1) for pair in pairs))
    )
