"""A first look at the machine, for the commands that print one."""

import asyncio

from agent import beats
from agent.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.model import Snapshot

LONGEST = 30.0
"""Seconds for which a look waits: without persistence mode, the driver takes its time to start."""


SETTLED = 30.0
"""Seconds that a simulated machine has run when it is looked at: its scenario is under way."""


def settled(hardware: Hardware, clock: SystemClock) -> Hardware:
    """The hardware as it is after a while: a real machine has been running anyway."""
    if hardware.simulated:
        clock.skip(SETTLED)
    return hardware


async def look(agent: Agent) -> tuple[Snapshot, Snapshot]:
    """The first whole snapshot, and one a tick later: what moved between them has a rate."""
    poller = agent.poller
    start = agent.clock.monotonic()
    while poller.waiting_for() and agent.clock.monotonic() - start < LONGEST:
        await poller.tick()
        if poller.waiting_for():
            await agent.clock.sleep(beats.TICK / 5)
    first = poller.latest
    await agent.clock.sleep(beats.TICK)
    for read in agent.gpus.reads():  # what takes turns, or seldom moves, is read again too
        if read.every() <= beats.ENERGY:
            read.due = 0.0
    await poller.tick()
    return first, poller.latest


def take(agent: Agent) -> tuple[Snapshot, Snapshot]:
    """`look`, for a caller without an event loop."""
    agent.watch.start()
    return asyncio.run(look(agent))
