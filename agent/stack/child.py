"""A child of the stack: started, waited for, started again when it dies, ended."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import BadInput
from agent.stack.programs import StackProgram, answer

READY_SECONDS = 60.0
"""Seconds that a program gets until it is ready."""

STOP_SECONDS = 10.0
"""Seconds that a program gets to end by itself once it is asked to."""

PAUSE_SECONDS = 1.0
"""Seconds before a program that died is started again."""

GLANCE = 0.1
"""Seconds between two checks whether a program is ready."""


class DidNotStart(BadInput):
    """A program of the stack that was never ready."""


@dataclass(slots=True, eq=False)
class ChildProcess:
    """A program of the stack, kept alive."""

    program: StackProgram
    log: Path
    leash: Sequence[str]  # the words before its command that let it die with us
    say: Callable[[str], None]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: bool = False  # never ready, and done without

    async def keep(self) -> None:
        """Start it, and start it again whenever it dies; end it when cancelled. If it is never
        ready, raises DidNotStart, or goes on without a program that is optional."""
        name = self.program.name
        while True:
            how = await self._live()
            if not self.ready.is_set():
                lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                why = f"{name} {how}: {lines[-1] if lines else 'it logged nothing'}"
                if not self.program.optional:
                    raise DidNotStart(why)
                self.say(f"{why}; going on without it")
                self.abandoned = True
                self.ready.set()
                return
            self.say(f"{name} {how}; it is started again in {PAUSE_SECONDS:g} s")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _live(self) -> str:
        """Run it to its end, in a session of its own, because Ctrl-C in the terminal reaches this
        process; return how it ended."""
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.leash,
                *self.program.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.program.environment},
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(READY_SECONDS) as deadline:
                while process.returncode is None:
                    if (await answer(self.program.port, self.program.ready))[0] == 200:
                        deadline.reschedule(None)
                        if self.ready.is_set():
                            self.say(f"{self.program.name} is back")
                        self.ready.set()
                        await process.wait()
                    await asyncio.sleep(GLANCE)
        except TimeoutError:
            return f"was not ready within {READY_SECONDS:g} s"
        finally:
            await _end(process)
        status = process.returncode
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let it end by itself, or else end it."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


async def supervise(
    children: Sequence[ChildProcess],
    stop: asyncio.Future[None],
    once_ready: Callable[[], Awaitable[None]],
) -> None:
    """Keep the children alive and, once all are ready, act; until `stop`, then end all.

    Raises DidNotStart if a needed child was never ready.
    """

    async def work_once_ready() -> None:
        for child in children:
            await child.ready.wait()
        await once_ready()

    tasks = [asyncio.create_task(child.keep()) for child in children]
    tasks.append(asyncio.create_task(work_once_ready()))
    waited: set[asyncio.Future[None]] = {stop, *tasks}
    try:
        while not stop.done():
            done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
