"""A child of the stack: started, waited for, started again when it dies, ended."""

import asyncio
import os
import signal
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import BadInput
from agent.stack.programs import StackProgram, answer

READY_TIMEOUT = 60.0
"""Seconds that a program gets until it is ready."""

STOP_TIMEOUT = 10.0
"""Seconds that a program gets to end by itself once it is asked to."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a program that died is started again: doubled each time."""

GLANCE = 0.1
"""Seconds between two checks whether a program is ready."""


class DidNotStart(BadInput):
    """A program of the stack that was never ready."""


@dataclass(slots=True, eq=False)
class ChildProcess:
    """One program of the stack, kept alive."""

    program: StackProgram
    log: Path
    leash: Sequence[str]  # the words before its command that let it die with us
    say: Callable[[str], None]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: bool = False  # never ready, and done without
    _process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Start it, and start it again whenever it dies. Where it is never ready, raises
        DidNotStart, or goes on without a program that is optional."""
        pause, name = FIRST_PAUSE, self.program.name
        while True:
            self._process = process = await self._start()
            ended = asyncio.create_task(process.wait())
            answers = asyncio.create_task(self._answers())
            await asyncio.wait({ended, answers}, timeout=READY_TIMEOUT, return_when=FIRST_COMPLETED)
            if answers.done():
                if self.ready.is_set():
                    self.say(f"{name} is back")
                self.ready.set()
                await ended
            answers.cancel()
            how = f"was not ready within {READY_TIMEOUT:g} s"
            if ended.done():
                status = ended.result()
                signalled = status < 0 and f"was ended by {signal.Signals(-status).name}"
                how = signalled or f"ended with status {status}"
            if not self.ready.is_set():
                lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                why = f"{name} {how}: {lines[-1] if lines else 'it logged nothing'}"
                if not self.program.optional:
                    raise DidNotStart(why)
                self.say(f"{why}; going on without it")
                self.abandoned = True
                self.ready.set()
                return
            await self.end()
            self.say(f"{name} {how}; it is started again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def end(self) -> None:
        """Let it end by itself, or else end it."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        """Start in a separate session: Ctrl-C in the terminal reaches us, and we end our
        children."""
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self.leash,
                *self.program.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.program.environment},
                start_new_session=True,
            )

    async def _answers(self) -> None:
        while (await answer(self.program.port, self.program.ready))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(GLANCE)


async def supervise(
    children: Sequence[ChildProcess],
    stop: asyncio.Future[None],
    once_ready: Callable[[], Awaitable[None]],
) -> None:
    """Keep the children alive and, once all are ready, act; until `stop`, then end all.

    Raises DidNotStart where one that is needed was never ready.
    """

    async def work_once_ready() -> None:
        for child in children:
            await child.ready.wait()
        await once_ready()

    keepers = [asyncio.create_task(child.keep()) for child in children]
    work = asyncio.create_task(work_once_ready())
    waited: set[asyncio.Future[None]] = {stop, work, *keepers}
    try:
        while not stop.done():
            done, waited = await asyncio.wait(waited, return_when=FIRST_COMPLETED)
            for ended in done:
                ended.result()
    finally:
        for task in (work, *keepers):
            task.cancel()
        await asyncio.gather(work, *keepers, return_exceptions=True)
        await asyncio.gather(*(child.end() for child in children))
