"""A first look at the machine, for the commands that print one."""

import asyncio

from agent.cli.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.model import Cause, Snapshot, State
from agent.polling import intervals

LONGEST = 30.0
"""Seconds for which a look waits: without persistence mode, the driver takes its time to start."""


FURTHER_LOOKS = 9
"""Seconds more for a GPU that starves by nothing that was seen at once: another state must lead
for three."""

UNEXPLAINED = (State.STARVED, Cause.UNKNOWN)

SETTLED = 30.0
"""Seconds that a simulated machine has run when it is looked at: its scenario is under way."""


def settled(hardware: Hardware, clock: SystemClock) -> Hardware:
    """The hardware as it is after a while: a real machine has been running anyway."""
    if hardware.simulated:
        clock.skip(SETTLED)
    return hardware


async def look(agent: Agent) -> Snapshot:
    """The snapshot a tick after the first whole one: what moved between the two has a rate."""
    poller = agent.poller
    start = agent.clock.monotonic()
    while poller.waiting_for() and agent.clock.monotonic() - start < LONGEST:
        await poller.tick()
        if poller.waiting_for():
            await agent.clock.sleep(intervals.TICK / 5)
    await agent.clock.sleep(intervals.TICK)
    for read in agent.gpus.reads():  # what takes turns, or seldom moves, is read again too
        if read.every() <= intervals.ENERGY:
            read.due = 0.0
    await poller.tick()
    for _ in range(FURTHER_LOOKS):
        if not puzzled(poller.latest):
            break
        await agent.clock.sleep(intervals.TICK)
        await poller.tick()
    return poller.latest


def puzzled(snapshot: Snapshot) -> bool:
    """Whether a GPU starves by nothing that can be seen: what its processes do takes two looks."""
    return any(verdict.pair == UNEXPLAINED for verdict in snapshot.verdicts.values())


def take(agent: Agent) -> Snapshot:
    """`look`, for a caller without an event loop."""
    agent.start()
    return asyncio.run(look(agent))
