"""A simulated fleet in one process: `python -m agent.cli.fleet NODES SYSTEM HOST:PORT SPEED [CUT]`.

`dgx-telemetry up --fleet` starts it. An agent runs for each kind of load that is in the fleet; each
node repeats the report of its kind's agent (agent/simulator/README.md).
"""

import asyncio
import resource
import sys

from agent.cli.assembly import Agent, simulated_hardware
from agent.cli.options import stop_signal
from agent.cli.run import SWITCH_INTERVAL
from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.errors import BadInput
from agent.simulator.fleet import plan
from exporters.fleet import FleetServer
from exporters.prometheus import Exposition

POWER_CUT = "300"
"""Seconds until the last rack loses its power."""


async def serve(number: str, system: str, listen: str, speed: str, cut: str = POWER_CUT) -> None:
    """Serve a fleet until a signal; raises BadInput."""
    nodes, clock = plan(int(number)), SystemClock(float(speed))
    host, _, port = listen.rpartition(":")
    agents = {
        kind: Agent(Settings(), simulated_hardware(f"{system}:{kind}", clock), clock)
        for kind in {node.scenario for node in nodes}
    }
    pollers = [agent.poller for agent in agents.values()]

    def awaited() -> str:
        return next((words for one in pollers if (words := one.waiting_for())), "")

    async def cut_power() -> None:
        await clock.sleep(float(cut))
        if nodes[-1].rack != nodes[0].rack:
            server.dark = {node.address for node in nodes if node.rack == nodes[-1].rack}
        await stop

    stop = stop_signal()
    pages = {kind: _page(agent) for kind, agent in agents.items()}
    server = FleetServer(nodes, pages, awaited, int(port))
    try:
        await server.start(host)
    except OSError as error:
        raise BadInput(f"cannot listen on {listen}: {error.strerror}") from error
    for agent in agents.values():
        agent.start()
    works = [asyncio.create_task(work) for work in (cut_power(), *(one.run() for one in pollers))]
    done, rest = await asyncio.wait({stop, *works}, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await server.end()
    for ended in done:
        ended.result()


def _page(agent: Agent) -> Exposition:
    return Exposition(lambda: agent.poller.latest, agent.clock.monotonic, process=False)


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL)  # many threads: a scrape must not wait for long
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a socket and a client for each node
    try:
        asyncio.run(serve(*sys.argv[1:]))
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(2)
