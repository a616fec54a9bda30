"""Simulated machines by the dozen: agents as `run` makes them, in one process, each on a port.

    python -m tests.stack.fleet SPEED HELD_AFTER NAME=SYSTEM:SCENARIO ...

prints `NAME PORT` for each and then obeys lines `NAME SCENARIO` on its standard input, until that
is closed.
"""

import asyncio
import logging
import sys
from dataclasses import dataclass

from agent import simulator
from agent.cli.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.diagnosis.thresholds import Thresholds
from agent.polling import intervals
from exporters.http import AgentPages
from exporters.prometheus import Exposition
from exporters.server import serve


@dataclass(frozen=True)
class Member:
    """One machine, and the agent that watches it."""

    machine: simulator.SimulatedSystem
    agent: Agent


def member(spec: str, speed: float, config: Settings) -> Member:
    clock = SystemClock(speed)
    machine = simulator.build(simulator.parse(spec), clock)
    hardware = Hardware(lambda: machine.nvml, machine.host, simulated=True)
    return Member(machine, Agent(config, hardware, clock))


async def listen(name: str, agent: Agent) -> asyncio.Task[None]:
    """Serve and tick as `run` does."""
    poller = agent.poller
    exposition = Exposition(lambda: poller.latest, agent.clock.monotonic, process=False)
    app = AgentPages(exposition, lambda: poller.latest, awaited=poller.waiting_for).application()
    runner = await serve(app, "127.0.0.1", 0)
    agent.start()
    print(name, runner.addresses[0][1], flush=True)
    return asyncio.create_task(poller.run())


async def obey(members: dict[str, Member]) -> None:
    """Change what plays, line by line."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        name, scenario = line.decode().split()
        members[name].machine.set_scenario(scenario)


async def serve_all(speed: float, held_after: float, specs: dict[str, str]) -> None:
    config = Settings(Thresholds(held_after=held_after))
    faster = held_after / Thresholds().held_after  # what is read seldom, as the rules are
    for seldom in ("LINKS", "ECC", "MANAGER", "CHASSIS", "SMART"):
        setattr(intervals, seldom, getattr(intervals, seldom) * faster)
    members = {name: member(spec, speed, config) for name, spec in specs.items()}
    ticking = [await listen(name, entry.agent) for name, entry in members.items()]
    obeying = asyncio.create_task(obey(members))
    done, _ = await asyncio.wait({obeying, *ticking}, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # many threads, one interpreter: a scrape must not queue for long
    logging.basicConfig(level="CRITICAL", handlers=[logging.NullHandler()])
    speed, held_after, *pairs = sys.argv[1:]
    specs = dict(pair.split("=", 1) for pair in pairs)
    asyncio.run(serve_all(float(speed), float(held_after), specs))
