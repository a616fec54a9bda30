"""Starts the programs of the stack as child processes, monitors them, and stops them."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from agent.errors import BadInput
from agent.report.questions import NoAnswer, opened
from agent.stack.programs import LEASH, StackProgram

READY_SECONDS, STOP_SECONDS = 60.0, 10.0
"""Seconds to wait until a program is ready, and until a terminated program exits."""

ANSWER_SECONDS, GLANCE = 5.0, 0.1
"""Timeout of a readiness check, and interval of the checks, in seconds."""


async def run_all(
    programs: Sequence[StackProgram],
    logs: Path,
    stop: asyncio.Future[None],
    once_ready: Callable[[Sequence[StackProgram]], Awaitable[None]],
    say: Callable[[str], None],
) -> None:
    """Run the programs until `stop` is done, and write their output to `logs`. When all are ready,
    call `once_ready`. Raise BadInput if a program that is not optional fails or exits."""
    running: dict[str, Process] = {}

    def lost(program: StackProgram, how: str) -> None:
        log = (logs / f"{program.name}.log").read_text(encoding="utf-8", errors="replace")
        last = next((one for one in reversed(log.split("\n")) if one.strip()), "it logged nothing")
        why = f"{program.name} {how}: {last}"
        if not program.optional:
            raise BadInput(why)
        say(f"{why}; going on without it")

    async def until_end(program: StackProgram) -> None:
        lost(program, _ending(await running[program.name].wait()))

    async def run() -> None:
        for program in programs:
            running[program.name] = await _started(program, logs / f"{program.name}.log")
        living = []
        for program in programs:
            if how := await _until_ready(program, running[program.name]):
                lost(program, how)
            else:
                living.append(program)
        await asyncio.gather(once_ready(living), *map(until_end, living))

    work = asyncio.create_task(run())
    try:
        await asyncio.wait({stop, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        work.cancel()
        await asyncio.gather(work, *map(_end, running.values()), return_exceptions=True)


async def _started(program: StackProgram, log: Path) -> Process:
    """Start a program in a separate session. On Ctrl-C, the terminal then signals only this
    process, which stops its children."""
    with log.open("ab") as output:
        try:
            return await asyncio.create_subprocess_exec(
                *LEASH,
                *program.arguments,
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **program.environment},
                start_new_session=True,
            )
        except OSError as error:
            raise BadInput(f"up cannot start {LEASH[0]}: {error.strerror}") from error


async def _until_ready(program: StackProgram, process: Process) -> str:
    """Wait until a program is ready. Return an empty string, or why it does not become ready."""
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while process.returncode is None:
        if await asyncio.to_thread(_answers, program):
            return ""
        if asyncio.get_running_loop().time() > deadline:
            await _end(process)
            return f"was not ready within {READY_SECONDS:g} s"
        await asyncio.sleep(GLANCE)
    return _ending(process.returncode)


def _answers(program: StackProgram) -> bool:
    with suppress(NoAnswer), opened(program.address.rstrip("/") + program.ready, ANSWER_SECONDS):
        return True
    return False


def _ending(status: int) -> str:
    name = signal.Signals(-status).name if status < 0 else ""
    return f"was ended by {name}" if name else f"ended with status {status}"


async def _end(process: Process) -> None:
    """Terminate a program, or kill it if it does not exit in time."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
