"""Runs all programs of the stack until they are ended, or one cannot start."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agent.stack.child import ChildProcess, DidNotStart

Stop = asyncio.Future[None]
Task = asyncio.Task[None]
Act = Callable[[], Awaitable[None]]


async def supervise(children: Sequence[ChildProcess], stop: Stop, once_ready: Act) -> None:
    """Keep the children alive and, once all are ready, act; until `stop`, then end all.

    Raises DidNotStart where one that is needed was never ready.
    """
    keepers = [asyncio.create_task(_keep(child)) for child in children]
    work = asyncio.create_task(_after(children, once_ready))
    try:
        await _first(stop, work, keepers)
    finally:
        for task in (work, *keepers):
            task.cancel()
        await asyncio.gather(work, *keepers, return_exceptions=True)
        await asyncio.gather(*(child.end() for child in children))


async def _first(
    stop: Stop, work: asyncio.Task[None], keepers: Sequence[asyncio.Task[None]]
) -> None:
    """Wait until it is time to end; what broke is raised."""
    waited: set[asyncio.Future[None]] = {stop, work, *keepers}
    while not stop.done():
        done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()


async def _after(children: Sequence[ChildProcess], once_ready: Act) -> None:
    for child in children:
        await child.ready.wait()
    await once_ready()


async def _keep(child: ChildProcess) -> None:
    """Keep a child alive; one that the stack can do without may fail to start."""
    try:
        await child.keep()
    except DidNotStart as failure:
        if not child.program.optional:
            raise
        child.say(f"{failure}; going on without it")
        child.abandoned = True
        child.ready.set()
