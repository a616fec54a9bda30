"""The first snapshot of a machine, for the commands that print one and end."""

import asyncio
from socket import gethostname

from agent.cli.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.faults.thresholds import AlertThresholds
from agent.hardware.processes import uptime
from agent.model import Cause, Snapshot, State
from agent.polling import intervals
from exporters.live.view import View

TIMEOUT = 30.0
"""Seconds that the first readings may take: without persistence mode the driver starts slowly."""


FURTHER_TICKS = 9
"""Seconds more for a GPU that is starved without a known cause yet: a state must lead for three."""

UNEXPLAINED = (State.STARVED, Cause.UNKNOWN)

SETTLED = 30.0
"""Seconds that a simulated machine has run before it is looked at: its scenario is under way."""


def settled(hardware: Hardware, clock: SystemClock) -> Hardware:
    """The hardware as it is after a while: a real machine has been running anyway."""
    if hardware.simulated:
        clock.skip(SETTLED)
    return hardware


async def first_snapshot(agent: Agent, longest: float = TIMEOUT) -> Snapshot:
    """The snapshot a tick after the first whole one: what moved between the two has a rate. After
    `longest` (s) it is as it is."""
    poller = agent.poller
    start = agent.clock.monotonic()
    while poller.waiting_for() and agent.clock.monotonic() - start < longest:
        await poller.tick()
        if poller.waiting_for():
            await agent.clock.sleep(intervals.TICK / 5)
    await agent.clock.sleep(intervals.TICK)
    for read in agent.gpus.reads():  # what takes turns, or seldom moves, is read again too
        if read.every() <= intervals.ENERGY:
            read.due = 0.0
    await poller.tick()
    for _ in range(FURTHER_TICKS):
        if not is_unexplained(poller.latest) or agent.clock.monotonic() - start >= longest:
            break
        await agent.clock.sleep(intervals.TICK)
        await poller.tick()
    return poller.latest


def is_unexplained(snapshot: Snapshot) -> bool:
    """Return whether a GPU is starved without a known cause: rates of processes take two
    readings."""
    return any(verdict.pair == UNEXPLAINED for verdict in snapshot.verdicts.values())


def first_snapshot_now(agent: Agent, longest: float = TIMEOUT) -> Snapshot:
    """`first_snapshot`, for a caller without an event loop."""
    agent.start()
    return asyncio.run(first_snapshot(agent, longest))


def view_of(agent: Agent, hardware: Hardware) -> View:
    """Return the view that clients may query."""
    return View(
        diagnosis=agent.diagnosis,
        samples=agent.poller.samples,
        latest=lambda: agent.poller.latest,
        system=lambda: agent.recognise(agent.gpus.inventory),
        uptime=lambda: uptime(hardware.host.files),
        now=agent.clock.monotonic,
        jobs=lambda: agent.jobs.current,
        thresholds=lambda: agent.settings[AlertThresholds],
        simulated=hardware.simulated,
        host=gethostname(),
    )
