"""`dgx-telemetry run`: the agent in the foreground."""

import argparse
import asyncio
import logging
import signal
from contextlib import suppress

from agent import __version__
from agent.assembly import Agent, build_agent
from agent.clock import SystemClock
from agent.commands.options import config_of, hardware_of
from agent.config import ConfigError
from agent.journal import start_logging
from exporters.http import application, serve
from exporters.prometheus import Exposition

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; hardware never ends the agent."""
    config = config_of(arguments)
    speed = getattr(arguments, "simulate_speed", 1.0)
    if speed != 1.0 and arguments.simulate is None and arguments.replay is None:
        raise ConfigError("--simulate-speed needs --simulate or --replay: real time has one speed")
    clock = SystemClock(speed)
    hardware = hardware_of(arguments, clock)
    start_logging(config.log)
    asyncio.run(_serve(build_agent(config, hardware, clock)))
    return 0


async def _serve(agent: Agent) -> None:
    poller = agent.poller
    exposition = Exposition(lambda: poller.latest, agent.clock)
    app = application(exposition, lambda: poller.latest, agent.clock, awaited=poller.waiting_for)
    host, port = agent.config.address
    try:
        runner = await serve(app, host, port)
    except (OSError, UnicodeError) as error:  # a host that cannot be a name is a UnicodeError
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {agent.config.listen}: {why}") from error
    log.info("event=started version=%s listen=http://%s/", __version__, agent.config.listen)
    agent.watch.start()
    ticking = asyncio.create_task(poller.run())
    stop = asyncio.get_running_loop().create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _end, stop, number)
    await asyncio.wait({ticking, stop}, return_when=asyncio.FIRST_COMPLETED)
    ticking.cancel()
    await runner.cleanup()
    log.info("event=stopped")
    with suppress(asyncio.CancelledError):
        await ticking  # a poller that broke is told, not swallowed


def _end(stop: asyncio.Future[int], number: int) -> None:
    if not stop.done():
        stop.set_result(number)
