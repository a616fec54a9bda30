"""`dgx-telemetry run`: the agent in the foreground."""

import argparse
import asyncio
import gc
import logging
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

from agent import __version__
from agent.assembly import Agent, build_agent
from agent.beats import TICK
from agent.clock import SystemClock
from agent.commands.options import config_of, hardware_of
from agent.commands.view import view_of
from agent.config import ConfigError
from agent.heartbeat import Heartbeat, condition
from agent.journal import start_logging
from agent.model import Snapshot
from agent.notify import STOPPING, Supervisor
from agent.reload import Reload
from exporters.admission import Admission
from exporters.http import AGENT, application
from exporters.live.feed import Feed
from exporters.prometheus import Exposition
from exporters.server import Server, serve
from exporters.web_file import WebFile

log = logging.getLogger(__name__)

SETTLED = 10
"""The tick by which every beat of the usual length has run."""

TURN = 0.0005
"""Seconds after which a thread hands Python's lock on to one that waits. A tick reads hundreds of
files and driver values, and after each its thread waits for the lock while others render: at
Python's 5 ms 64 clients made ticks up to 0.4 s late, at this they do not."""


@dataclass(frozen=True, slots=True)
class Duty:
    """Everything that serves until the end."""

    agent: Agent
    web: WebFile
    reload: Reload
    supervisor: Supervisor
    feed: Feed


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; hardware never ends the agent."""
    sys.setswitchinterval(TURN)
    config = config_of(arguments)
    speed = getattr(arguments, "simulate_speed", 1.0)
    if speed != 1.0 and arguments.simulate is None and arguments.replay is None:
        raise ConfigError("--simulate-speed needs --simulate or --replay: real time has one speed")
    clock = SystemClock(speed)
    hardware = hardware_of(arguments, clock)
    web = WebFile(config.web_config_file)
    start_logging(config.log)
    supervisor = Supervisor.of()
    if 0 < supervisor.watchdog < 2 * TICK / speed:
        log.warning(
            "event=watchdog_too_short seconds=%g tick=%g", supervisor.watchdog, TICK / speed
        )
    agent = build_agent(config, hardware, clock)

    reload = Reload(
        agent,
        read=lambda: config_of(arguments),
        others=lambda config: web.follow(config.web_config_file),
        supervisor=supervisor,
    )
    feed = Feed(view_of(agent, hardware))
    asyncio.run(_serve(Duty(agent, web, reload, supervisor, feed)))
    return 0


async def _serve(duty: Duty) -> None:
    agent, poller = duty.agent, duty.agent.poller
    poller.config_ok = lambda: duty.reload.good and duty.web.good
    poller.listeners += [Heartbeat(duty.supervisor, lambda: condition(agent)), duty.feed, settle]
    server = await _listen(duty)
    agent.watch.start()
    ticking = asyncio.create_task(poller.run())
    reloading = asyncio.create_task(duty.reload.run())
    loop = asyncio.get_running_loop()
    stop = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, stop, number)
    loop.add_signal_handler(signal.SIGHUP, duty.reload.ask)
    tasks = ticking, reloading, *server.working
    await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    duty.supervisor.tell(STOPPING)
    for task in tasks:
        task.cancel()
    await server.cleanup()
    log.info("event=stopped")
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task  # what broke is told, not swallowed


async def _listen(duty: Duty) -> Server:
    """Serve HTTP; raises ConfigError where that cannot be."""
    agent, poller, web = duty.agent, duty.agent.poller, duty.web
    exposition = Exposition(lambda: poller.latest, agent.clock)
    admission = Admission(lambda: web.now.config, asyncio.get_running_loop().time)
    app = application(
        exposition,
        lambda: poller.latest,
        agent.clock,
        awaited=poller.waiting_for,
        feed=duty.feed,
        middlewares=(admission.middleware(),),
    )
    app.on_response_prepare.append(admission.add_headers)
    poller.listeners.append(app[AGENT].scrapes.tick)
    listen = agent.config.listen
    try:
        server = await serve(app, *agent.config.address, context=lambda: web.now.context)
    except (OSError, UnicodeError) as error:  # a host that cannot be a name is a UnicodeError
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {listen}: {why}") from error
    scheme = "https" if web.now.context else "http"
    log.info("event=started version=%s listen=%s://%s/", __version__, scheme, listen)
    if web.now.config.http2:
        log.info('event=http1_only file="%s"', web.path)
    if not server.is_local and not web.now.is_guarded:
        advice = "whoever reaches it can read it; --web.config.file sets TLS and passwords"
        log.warning('event=listening_unguarded listen=%s advice="%s"', listen, advice)
    return server


def settle(snapshot: Snapshot) -> None:
    """Once all is built, spare it from garbage collection: looking through it took 40 ms at times,
    and everything else waited."""
    if snapshot.tick == SETTLED:
        gc.collect()
        gc.freeze()


def _end(stop: asyncio.Future[int], number: int) -> None:
    if not stop.done():
        stop.set_result(number)
