"""A simulated fleet in one process: `python -m agent.cli.fleet NODES SYSTEM HOST:PORT SPEED [CUT]`.

`dgx-telemetry up --fleet` starts it. One agent lives for each kind of load that is in the fleet;
each node says what one of them does (agent/simulator/README.md).
"""

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent.cli.assembly import Agent, simulated_hardware
from agent.cli.options import stop_signal
from agent.clock import Clock, SystemClock
from agent.config.settings import Settings
from agent.errors import BadInput
from agent.model import Sample
from agent.polling.intervals import TICK
from agent.simulator.fleet import CLUSTER, POWER_CUT, FleetMachine, NodePlan, SimulatedNode, plan
from agent.sources.workload import JOB_INFO, JobConfig
from agent.stack.inventory import PORT
from exporters.fleet import FleetServer, Read


@dataclass(slots=True, eq=False)
class SteppedClock:
    """A clock of whole ticks: on a machine that is too busy its agents live slower, and what they
    report each second stays true."""

    ticks: float = 0.0

    def monotonic(self) -> float:
        return self.ticks

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        self.ticks += seconds

    def meter(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()

    def offset(self) -> float | None:
        return 0.0


class SimulatedFleet:
    """The agents, and the nodes that say what those do."""

    def __init__(self, plans: Sequence[NodePlan], system: str, clock: Clock) -> None:
        self.plans = plans
        self.clock = clock
        self.stepped = SteppedClock()
        self.began = clock.monotonic()
        kinds = sorted({phase.scenario for plan in plans for phase in plan.phases})
        settings = Settings(JobConfig(info=True))
        self.agents: dict[str, Agent] = {
            kind: Agent(
                settings,
                simulated_hardware(f"{system}:{kind}", self.stepped),
                self.stepped,
                inline=True,
            )
            for kind in kinds
        }
        self.machines = {kind: FleetMachine() for kind in kinds}
        self.on: set[str] = set()
        self.server = FleetServer(self.targets, self.awaited)

    @property
    def now(self) -> float:
        return self.clock.monotonic() - self.began

    def targets(self) -> list[dict[str, Any]]:
        """Every node of the inventory, whether it answers or not."""
        return [
            {
                "targets": [f"{one.address}:{self.server.port}"],
                "labels": {
                    "instance": f"{one.name}:{PORT}",  # as of real nodes
                    "cluster": CLUSTER,
                    "rack": one.rack,
                    "node": one.name,
                },
            }
            for one in self.plans
            if self.now < one.removed
        ]

    def awaited(self) -> str:
        """Return the names of what has not been read yet, until all agents have read everything
        once."""
        return next((w for a in self.agents.values() if (w := a.poller.waiting_for())), "")

    async def run(self) -> None:
        """Let the agents live, a second of the clock a tick at most; nodes come and go.

        After each tick who scrapes has as long as that took: on a busy machine agents live
        slower, and scrapes are not late.
        """
        due = self.clock.monotonic()
        while True:
            if any(machine.lives for machine in self.machines.values()):
                await self._tick()
            await self.follow()
            due = max(due + TICK, self.clock.monotonic())
            await self.clock.sleep(due - self.clock.monotonic())

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        for kind, agent in self.agents.items():
            began = loop.time()
            await agent.poller.tick()
            agent.watch.poll(0)
            latest = agent.poller.latest
            self.machines[kind].take(latest.samples(latest.at), self.now)
            await asyncio.sleep(loop.time() - began)
        await self.stepped.sleep(TICK)

    async def follow(self) -> None:
        for one in self.plans:
            answers = one.answers(self.now)
            if answers and one.name not in self.on:
                self.on.add(one.name)
                await self.server.turn_on(one.address, self._reader(one))
            elif not answers and one.name in self.on:
                self.on.remove(one.name)
                await self.server.turn_off(one.address)

    def _reader(self, one: NodePlan) -> Read:
        node = SimulatedNode(one, self.now, JOB_INFO)

        def read() -> Iterable[Sample]:
            now = self.now
            scenario = one.scenario(now)
            return node.samples(scenario, self.machines[scenario].samples(now), now)

        return read


async def serve(fleet: SimulatedFleet, host: str, port: int) -> None:
    stop = stop_signal()
    try:
        await fleet.server.start(host, port)
    except OSError as error:
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}") from error
    ticking = asyncio.create_task(fleet.run())
    await asyncio.wait({stop, ticking}, return_when=asyncio.FIRST_COMPLETED)
    ticking.cancel()
    await fleet.server.end()
    with suppress(asyncio.CancelledError):
        await ticking  # what broke is reported


def main(number: str, system: str, listen: str, speed: str, cut: str = str(POWER_CUT)) -> int:
    """Serve a fleet whose last rack loses its power after `cut` seconds; the exit status."""
    host, _, port = listen.rpartition(":")
    try:
        fleet = SimulatedFleet(plan(int(number), float(cut)), system, SystemClock(float(speed)))
        asyncio.run(serve(fleet, host, int(port)))
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
