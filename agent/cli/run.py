"""The `dgx-telemetry run` command. It runs the agent in the foreground."""

import argparse
import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from logging.handlers import MemoryHandler
from typing import Any

from agent import __version__
from agent.cli.assembly import Agent, Hardware
from agent.cli.driver_release import DriverRelease, execute_again
from agent.cli.options import board_of, hardware_of, settings_of, stop_signal
from agent.clock import SystemClock
from agent.config.configuration import ConfigError
from agent.config.reload import Reload
from agent.config.settings import Settings
from agent.diagnosis.disclosure import Disclosure
from agent.diagnosis.hours import HourlySums, state_folder
from agent.errors import LogEvent, log
from agent.model import Snapshot
from agent.polling.intervals import TICK
from agent.ranges import is_loopback
from agent.service import journal
from agent.status.build import StatusBoard
from exporters.access_control import AccessControl
from exporters.dcgm import DcgmExposition
from exporters.http import AgentPages
from exporters.live.page import Feed
from exporters.prometheus import Exposition
from exporters.server import Server, serve
from exporters.settings import DcgmConfig, HttpConfig, MetricsConfig, NvlinkConfig
from exporters.web_file import WebFile

SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread yields the GIL to a waiting thread. Each tick reads hundreds of
files and driver values. After each of them, the reading thread waits until threads that render
responses yield the GIL. With the default of 5 ms, 64 clients delayed ticks by up to 0.4 s."""


def notify(
    notify_socket: journal.NotifySocket, sentence: Callable[[], str], snapshot: Snapshot
) -> None:
    """Notify systemd of a tick. The service is ready after the first tick, even if the driver has
    not responded. A driver that hangs raises an alert, and must not block the startup."""
    ready = [journal.READY] if snapshot.tick == 1 else []
    notify_socket.send(journal.WATCHDOG, *ready, journal.status(sentence()))


def condition_of(agent: Agent) -> str:
    """Return a sentence for systemd about the state of the agent, such as `Monitoring 8 GPUs.`"""
    poller, inventory = agent.poller, agent.gpus.inventory
    system = agent.system()
    if awaited := poller.waiting_for():
        return f"Waiting for {awaited}."
    if poller.stuck:
        return f"A call to {', '.join(sorted(poller.stuck))} hangs; the rest is served."
    if not inventory.connected:
        return f"No GPU is monitored: {inventory.why_not}."
    of = f" of {system.title}" if system else ""
    if inventory.lost:
        return f"{inventory.answering} of {len(inventory.gpus)} GPUs{of} respond."
    number = "1 GPU" if inventory.answering == 1 else f"{inventory.answering} GPUs"
    return f"Monitoring {number}{of}."


def run(arguments: argparse.Namespace) -> int:
    """Run the agent until SIGTERM, Ctrl-C, or a request for a restart. Hardware errors do not stop
    it."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    early = MemoryHandler(1000, flushOnClose=False)  # until logging is configured
    logging.getLogger().addHandler(early)
    settings = settings_of(arguments)
    speed = getattr(arguments, "simulate_speed", 1.0)
    if speed != 1.0 and arguments.simulate is None and arguments.replay is None:
        raise ConfigError("--simulate-speed needs --simulate or --replay: real time has one speed")
    clock = SystemClock(speed)
    kept = None if arguments.simulate or arguments.replay else state_folder()
    hardware = hardware_of(arguments, clock, kept=kept / "kernel-log" if kept else None)
    web = WebFile(settings[HttpConfig].web_config_file)
    journal.start_logging(settings[journal.LogConfig])
    for record in early.buffer:
        logging.getLogger(record.name).handle(record)
    notify_socket = journal.NotifySocket.of()
    if 0 < notify_socket.watchdog < 2 * TICK / speed:
        short = {"seconds": notify_socket.watchdog, "tick": TICK / speed}
        log.warning(LogEvent("watchdog_too_short", **short))
    agent = Agent(settings, hardware, clock)
    agent.poller.listeners.append(lambda _: clock.stop() if agent.finished() else None)
    log_dropped(settings[MetricsConfig])

    reload = Reload(
        agent.configuration,
        lambda: agent.complete(_startable(settings_of(arguments))),
        partial(_follow, agent),
        under_way=notify_socket.while_reloading,
    )
    disclosure = Disclosure(agent.configuration)
    hours = HourlySums(agent.diagnosis.accounts, kept, lambda: disclosure.names)
    try:
        again = asyncio.run(_serve(agent, hardware, web=web, hours=hours, reload=reload))
    finally:
        hours.close()
    if again:
        execute_again()
    return 0


def _startable(settings: Settings) -> Settings:
    WebFile(settings[HttpConfig].web_config_file)  # raises ConfigError if it is invalid
    return settings


def _follow(agent: Agent, settings: Settings) -> None:
    journal.start_logging(settings[journal.LogConfig])
    log_dropped(settings[MetricsConfig])
    for read in agent.gpus.reads():  # what they report may depend on the system
        read.due = 0.0


async def _serve(
    agent: Agent, hardware: Hardware, *, web: WebFile, hours: HourlySums, reload: Reload
) -> bool:
    poller, again, board = agent.poller, asyncio.Event(), board_of(agent, hardware)
    feed = Feed(board)
    notify_socket = journal.NotifySocket.of()
    poller.config_ok = lambda: reload.good and web.good
    poller.certificate_ends = lambda: web.now.certificate_ends
    poller.listeners += [
        partial(notify, notify_socket, lambda: condition_of(agent)),
        feed,
        hours,
        DriverRelease(agent.gpus.asked_back, agent.clock, again.set),
        lambda snapshot: freeze_gc() if snapshot.tick == 10 else None,  # all reads have run
    ]
    freeze_gc()
    server = await _listen(agent, web, board, feed, hours.document)
    agent.watch.start()
    stop = stop_signal()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload.asked.set)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # they would terminate the program
        ignored = LogEvent("signal_ignored", signal=number.name, see="driver.release_file")
        loop.add_signal_handler(number, log.warning, ignored)
    runs: tuple[Coroutine[Any, Any, Any], ...] = (poller.run(), reload.run(), again.wait())
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(one) for one in runs]
    web.watch()
    await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    if not again.is_set():  # otherwise, systemd would kill the restarted program
        notify_socket.send(journal.STOPPING)
    for task in tasks:
        task.cancel()
    await server.cleanup()
    log.info(LogEvent("stopped"))
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task  # raises the exception of the task, if any
    return again.is_set() and not stop.done()


def exposition_of(agent: Agent, *, process: bool = True) -> Exposition:
    """Return the renderer of an agent's metrics, with `process_*` if `process` is true."""
    return Exposition(
        lambda: agent.poller.latest,
        agent.clock.monotonic,
        process=process,
        selected=lambda: agent.settings[MetricsConfig],
        per_link=lambda: agent.settings[NvlinkConfig].per_link,
    )


async def _listen(
    agent: Agent, web: WebFile, board: StatusBoard, feed: Feed, hours: Callable[[], bytes]
) -> Server:
    """Start the agent's HTTP server. Raise BadInput if it cannot listen on its address."""
    poller, http = agent.poller, agent.settings[HttpConfig]
    latest, now = lambda: poller.latest, agent.clock.monotonic
    dcgm = DcgmExposition(latest, now, poller.samples, lambda: agent.settings[DcgmConfig])
    exposition = exposition_of(agent)
    poller.listeners += [dcgm.tick, exposition.look]
    pages = AgentPages(
        exposition,
        latest,
        awaited=poller.waiting_for,
        status=board.json,
        feed=feed,
        jobs=lambda: agent.jobs.current,
        hours=hours,
        dcgm=dcgm,
    )
    access = AccessControl(lambda: web.now.users, lambda: agent.settings[HttpConfig].names)
    server = await serve(pages.application([access.admit]), http.listen, context=web.context)
    host = http.listen.rpartition(":")[0]
    addresses = server.addresses  # as returned by the kernel: (host, port, ...)
    listen = f"{'https' if web.context else 'http'}://{host}:{addresses[0][1]}/"
    log.info(LogEvent("started", version=__version__, listen=listen))
    if not web.now.is_guarded and not all(is_loopback(one[0]) for one in addresses):
        advice = "anyone who reaches it can read it; --web.config.file sets TLS and passwords"
        log.warning(LogEvent("listening_unguarded", listen=listen, advice=advice))
    return server


def log_dropped(config: MetricsConfig) -> None:
    """Log a warning if the settings drop metrics that boards or rules need, or use an old name."""
    if config.set == "small":
        log.warning(LogEvent("setting_renamed", setting="metrics.set", old="small", new="default"))
    if missed := config.missed:
        means = "alerts that need them will not come, and boards have gaps"
        log.warning(LogEvent("needed_metrics_dropped", metrics=" ".join(missed), means=means))


def freeze_gc() -> None:
    """Exclude all existing objects from garbage collection, because a full collection blocked all
    threads for up to 40 ms. Also raise the threshold for a collection, because each tick creates
    thousands of objects that live for seconds. With the default of 700, several collections per
    tick took 1 ms in total on eight GPUs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000)  # new objects
    gc.enable()
