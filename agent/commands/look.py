"""A first look at the machine, for the commands that print one."""

import asyncio

from agent import beats
from agent.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.diagnosis import accounting
from agent.look import Look
from agent.model import Snapshot

LONGEST = 30.0
"""Seconds for which a look waits: without persistence mode, the driver takes its time to start."""


FURTHER_LOOKS = 3
"""Seconds more for a GPU that starves by nothing that was seen at once."""

UNEXPLAINED = ("starved", "unknown")

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
    for _ in range(FURTHER_LOOKS):
        if not puzzled(poller.latest):
            break
        await agent.clock.sleep(beats.TICK)
        await poller.tick()
    return first, poller.latest


def puzzled(snapshot: Snapshot) -> bool:
    """Whether a GPU starves by nothing that can be seen: what its processes do takes two looks."""
    return any(
        value and labels[2:] == UNEXPLAINED
        for labels, value in Look(snapshot).all(accounting.STATE).items()
    )


def take(agent: Agent) -> tuple[Snapshot, Snapshot]:
    """`look`, for a caller without an event loop."""
    agent.watch.start()
    return asyncio.run(look(agent))
