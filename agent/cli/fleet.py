"""Runs a simulated fleet: `python -m agent.cli.fleet NODES SYSTEM HOST:PORT SPEED [CUT] [--config
FILE]`.

`dgx-telemetry up --fleet` starts this module. It runs one agent for each scenario in the fleet.
Each node serves the metrics of its scenario's agent (see agent/simulator/README.md).
"""

import argparse
import asyncio
import resource
import sys
from pathlib import Path

from agent.cli.assembly import Agent, simulated_hardware
from agent.cli.options import settings_of, stop_signal
from agent.cli.run import SWITCH_INTERVAL, exposition_of, freeze_gc
from agent.clock import SystemClock
from agent.errors import BadInput
from agent.simulator.scenarios import plan
from exporters.fleet import FleetPages
from exporters.server import MOST_CONNECTIONS, serve


async def run_fleet(given: argparse.Namespace) -> None:
    """Serve the metrics of a fleet until a stop signal arrives. All agents have the same settings.
    Raise BadInput if the server cannot listen on its address."""
    nodes, clock, settings = plan(given.number), SystemClock(given.speed), settings_of(given)
    agents = {
        kind: Agent(settings, simulated_hardware(f"{given.system}:{kind}", clock), clock)
        for kind in {node.scenario for node in nodes}
    }
    pollers = [agent.poller for agent in agents.values()]

    def awaited() -> str:
        return next((words for one in pollers if (words := one.waiting_for())), "")

    async def cut_power() -> None:
        await clock.sleep(given.cut)
        if nodes[-1].rack != nodes[0].rack:
            pages.dark = {nodes[-1].rack}
        await stop

    stop = stop_signal()
    shown = {kind: exposition_of(agent, process=False) for kind, agent in agents.items()}
    pages = FleetPages(nodes, shown, awaited)
    server = await serve(pages.app, given.address, most=len(nodes) + MOST_CONNECTIONS)
    for agent in agents.values():
        agent.watch.start()
    works = [asyncio.create_task(work) for work in (cut_power(), *(one.run() for one in pollers))]
    done, rest = await asyncio.wait({stop, *works}, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await server.cleanup()
    for ended in done:
        ended.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("system")
    parser.add_argument("address")
    parser.add_argument("speed", type=float)
    parser.add_argument("cut", type=float, nargs="?", default=300.0)  # s
    parser.add_argument("--config", type=Path)
    freeze_gc()
    sys.setswitchinterval(SWITCH_INTERVAL)  # keeps scrapes fast despite many threads
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection per node
    try:
        asyncio.run(run_fleet(parser.parse_args()))
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(2)
