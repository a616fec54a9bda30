"""Simulated machines by the dozen, with their live pages: agents as `run` makes them, in one
process, each on a port.

    python -m tests.stack.fleet SPEED HELD_AFTER SELDOM NAME=SYSTEM:SCENARIO ...

prints `NAME PORT` for each and then obeys lines `NAME SCENARIO` on its standard input, until that
is closed. What agents read seldom comes by the factor SELDOM sooner. The system `sixteen` is a box
with 16 GPUs. `SYSTEM:training*200,idle*30` has lived through so many seconds of each when it is
first seen, and goes on in real time.
"""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from agent import simulator
from agent.cli.assembly import Agent, Hardware
from agent.cli.options import board_of
from agent.cli.run import freeze_gc
from agent.clock import Clock, SystemClock
from agent.config.settings import Settings
from agent.diagnosis.thresholds import Thresholds
from agent.polling import intervals
from exporters.http import AgentPages
from exporters.live.page import Feed
from exporters.prometheus import Exposition
from exporters.server import serve
from tests.stack.running import clean_environment
from tests.support.machines import first_gpus
from tests.support.repository import ROOT

PAGE_HELD_AFTER, PAGE_SELDOM = 10.0, 1 / 15
"""For tests of the page: no one learns more from waiting a minute."""


class Fleet:
    """A process full of simulated machines; `with` ends it."""

    def __init__(
        self,
        speed: float,
        machines: Mapping[str, str],
        held_after: float = PAGE_HELD_AFTER,
        seldom: float = PAGE_SELDOM,
    ) -> None:
        pairs = [f"{name}={spec}" for name, spec in machines.items()]
        numbers = [f"{number:g}" for number in (speed, held_after, seldom)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stack.fleet", *numbers, *pairs],
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline().split() for _ in machines]
        self.ports = {name: int(port) for name, port in lines}

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def page(self, name: str) -> str:
        """The address of a machine's page."""
        return f"http://127.0.0.1:{self.ports[name]}/"

    def play(self, name: str, scenario: str) -> None:
        """Let a machine play another scenario from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {scenario}\n")
        self._process.stdin.flush()


class HistoryClock(SystemClock):
    """A clock that is moved by hand until `go` is called, and then runs as any other; its past ends
    now, for events and receipts alike."""

    def __init__(self, past: float) -> None:
        super().__init__()
        self._start = time.time() - past
        self._passed = 0.0  # s
        self._since: float | None = None

    def time(self) -> float:
        return self._start + self.monotonic()

    def monotonic(self) -> float:
        return self._passed + (0.0 if self._since is None else time.monotonic() - self._since)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) if self._since is not None else 0.0)

    def advance(self, seconds: float) -> None:
        self._passed += seconds

    def go(self) -> None:
        self._since = time.monotonic()


@dataclass(frozen=True)
class Member:
    """One machine with the agent that watches it, and its page."""

    machine: simulator.SimulatedSystem
    agent: Agent
    feed: Feed


async def member(spec: str, speed: float, config: Settings) -> Member:
    system, _, scenario = spec.partition(":")
    # of `training*200,starved-disk*40`; nothing of a lone scenario
    pairs = [part.split("*") for part in scenario.split(",") if "*" in scenario]
    lived = HistoryClock(sum(float(seconds) for _, seconds in pairs))
    clock: Clock = lived if pairs else SystemClock(speed)
    first = f"{system}:{pairs[0][0]}" if pairs else spec
    machine = simulator.SimulatedSystem(first_gpus(first), clock)
    machine.nvml.real_time = not pairs  # in a past nobody can wait for a slow call
    hardware = Hardware(lambda: machine.nvml, machine.host, simulated=True)
    agent = Agent(config, hardware, clock, inline=bool(pairs))
    feed = Feed(board_of(agent, hardware))
    agent.poller.listeners.append(feed)
    for played, seconds in pairs:
        machine.set_scenario(played)
        for _ in range(int(seconds)):
            await agent.poller.tick()
            agent.watch.poll(0)
            lived.advance(1.0)
    return Member(machine, agent, feed)


async def listen(name: str, one: Member) -> asyncio.Task[None]:
    """Serve and tick as `run` does."""
    agent, poller = one.agent, one.agent.poller
    exposition = Exposition(lambda: poller.latest, agent.clock.monotonic, process=False)
    pages = AgentPages(
        exposition,
        lambda: poller.latest,
        awaited=poller.waiting_for,
        feed=one.feed,
        jobs=lambda: agent.jobs.current,
    )
    runner = await serve(pages.application(), "127.0.0.1:0")
    agent.watch.start()
    if isinstance(agent.clock, HistoryClock):
        agent.clock.go()
        one.machine.nvml.real_time = True
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


async def serve_all(speed: float, held_after: float, seldom: float, specs: dict[str, str]) -> None:
    config = Settings(Thresholds(held_after=held_after))
    for name in ("LINKS", "ECC", "MANAGER", "CHASSIS", "SMART"):
        setattr(intervals, name, getattr(intervals, name) * seldom)
    members = {name: await member(spec, speed, config) for name, spec in specs.items()}
    ticking = [await listen(name, one) for name, one in members.items()]
    obeying = asyncio.create_task(obey(members))
    done, _ = await asyncio.wait({obeying, *ticking}, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


if __name__ == "__main__":
    freeze_gc()  # as `run` does
    sys.setswitchinterval(0.0005)  # many threads, one interpreter: a scrape must not queue for long
    logging.basicConfig(level="CRITICAL", handlers=[logging.NullHandler()])
    speed, held_after, seldom, *pairs = sys.argv[1:]
    specs = dict(pair.split("=", 1) for pair in pairs)
    asyncio.run(serve_all(float(speed), float(held_after), float(seldom), specs))
