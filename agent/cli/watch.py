"""The `dgx-telemetry watch` command. It shows the output of `once` in full-screen mode, and updates
it every second. Its keys are similar to those of `top`."""

import argparse
import asyncio
import logging
import os
import re
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Thread

from msgspec.structs import replace

from agent.cli import once
from agent.cli.options import first_readings, local_agent, settings_of
from agent.cli.running_agent import RunningAgent, asked
from agent.cli.table import prose, terminal_width
from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.errors import Failure, printable
from agent.polling.intervals import TICK
from agent.report.questions import NoAnswer
from agent.status.model import GpuStatus, Level

ENDING = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT
"""Signals that are handled like the q key, so that the terminal is restored before the exit."""

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_END, CLEAR = "\x1b[H", "\x1b[K", "\x1b[J"
BOLD, RED, YELLOW, GREEN = "1", "31", "33", "32"
COLOURS: dict[Level | None, str] = {Level.CRITICAL: RED, Level.WARNING: YELLOW, Level.GOOD: GREEN}
SORTS: dict[str, Callable[[GpuStatus], float]] = {
    "index": lambda gpu: gpu.gpu,
    "activity": lambda gpu: -(gpu.figures.activity_ratio or 0.0),
    "memory": lambda gpu: -(gpu.figures.memory_used_bytes or 0.0),
    "power": lambda gpu: -(gpu.figures.power_watts or 0.0),
}
HELP = (
    "a  all of it: GPUs, jobs, data paths (at the start)",
    "0-9  one GPU: why, what to do, who is on it; 1 then 2 is GPU 12",
    "s  sort GPUs by index, activity, memory, power",
    "Up, Down, Page Up, Page Down, Home, End  scroll",
    "h  this help",
    "q  end",
)
KEY = re.compile(r"\x1b(?:\[|O)[0-9;]*[A-Za-z~]|.", re.DOTALL)
"""Pattern for the input of a key press: a terminal escape sequence or a single character."""

SCROLL = {
    **{f"\x1b{start}{end}": step for start in "[O" for end, step in (("A", -1), ("B", 1))},
    **{f"\x1b{start}{end}": step for start in "[O" for end, step in (("H", -999), ("F", 999))},
    "\x1b[5~": -10,
    "\x1b[6~": 10,
    "\x1b[1~": -999,
    "\x1b[4~": 999,
}
"""Number of lines that each key scrolls."""


@dataclass(slots=True)
class ViewChoice:
    """The view that the user has selected. `gpu` is an index. `top` is the first visible line."""

    shown: str = "a"
    gpu: int = 0
    sort: str = "index"
    top: int = 0
    ended: bool = False

    def press(self, key: str, gpus: Collection[int] = ()) -> None:
        """Update the view for a key press. Unknown keys have no effect."""
        if key in SCROLL:
            self.top = max(0, self.top + SCROLL[key])
        elif key == "q":
            self.ended = True
        elif key.isdigit():
            longer = 10 * self.gpu + int(key)
            self.gpu = longer if self.shown == "g" and longer in gpus else int(key)
            self.shown, self.top = "g", 0
        elif key == "s":
            names = [*SORTS]
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key in ("a", "h", "?"):
            self.shown, self.top = key.replace("?", "h"), 0


@dataclass(slots=True)
class Shown:
    """The latest status, and a line of text about its source."""

    source: str = ""
    look: once.StatusView | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, look: once.StatusView | None, source: str) -> None:
        """Store a new status and its source. If `look` is None, keep the previous status. `source`
        then contains the reason why there is no new status."""
        self.look, self.source = look or self.look, source
        self.changed.set()


def run(arguments: argparse.Namespace) -> int:
    """Show the live view until q or Ctrl-C is pressed."""
    logging.getLogger().addHandler(logging.NullHandler())  # faults appear on the screen
    settings = settings_of(arguments)
    agent, note = asked(arguments, settings)
    able = os.environ.get("TERM", "dumb") != "dumb"
    screen = Screen(sys.stdout.isatty() and able)
    with screen.taken():
        asyncio.run(_watch(arguments, settings, agent, note, screen))
    return 0


async def _watch(
    arguments: argparse.Namespace,
    settings: Settings,
    agent: RunningAgent | None,
    note: str,
    screen: "Screen",
) -> None:
    choice, shown, loop = ViewChoice(), Shown(), asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, lambda: _press("q", choice, shown))
    if sys.stdin.isatty() and screen.whole:
        there = partial(os.read, sys.stdin.fileno(), 64)
        loop.add_reader(sys.stdin, lambda: _press(there().decode(errors="ignore"), choice, shown))
    reading: asyncio.Task[None] | None = None
    if agent is None:
        reading = asyncio.create_task(_read_here(arguments, settings, note, shown))
        reading.add_done_callback(lambda _: shown.changed.set())
    else:
        Thread(target=_follow, args=(agent, shown, loop), daemon=True).start()
    while not choice.ended and not (reading and reading.done()):
        await shown.changed.wait()
        shown.changed.clear()
        if shown.look is None:
            screen.say(shown.source)
        else:
            screen.draw(shown.look, choice, shown.source)
    if reading:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading  # raises the task's exception, if any


def _follow(agent: RunningAgent, shown: Shown, loop: asyncio.AbstractEventLoop) -> None:
    """Read the status of an agent every second on a separate thread."""
    with suppress(RuntimeError):  # the event loop is closed
        while True:
            look, why = None, f"from the agent at {agent.place}"
            try:
                look = once.StatusView(agent.status(), f"{agent.place}/runbook.html")
            except Exception as error:  # an invalid response may be temporary
                why = str(error) if isinstance(error, NoAnswer) else str(Failure.of(error))
            loop.call_soon_threadsafe(shown.put, look, why)
            time.sleep(TICK)


async def _read_here(
    arguments: argparse.Namespace, settings: Settings, note: str, shown: Shown
) -> None:
    shown.put(None, "Reading this machine for the first time.")
    agent, _, board = local_agent(arguments, settings, SystemClock())
    await first_readings(agent)
    while True:
        shown.put(once.StatusView(board.status()), note)
        if agent.finished():
            await asyncio.Event().wait()
        await agent.poller.look_again()
        await agent.clock.sleep(TICK)
        await agent.poller.tick()


def _press(keys: str, choice: ViewChoice, shown: Shown) -> None:
    numbers = {gpu.gpu for gpu in shown.look.status.gpus} if shown.look else set()
    for key in KEY.findall(keys):
        choice.press(key, numbers)
    shown.changed.set()


class Screen:
    """Draws on the whole terminal if `whole` is true. Otherwise, prints lines to a pipe or file."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.coloured = whole and not os.environ.get("NO_COLOR")

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Switch to the alternate screen and unbuffered input. Restore the terminal at the end."""
        if not self.whole:
            yield
            return
        before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
        if before is not None:
            tty.setcbreak(sys.stdin)
        try:
            print(ENTER, end="", flush=True)
            yield
        finally:
            print(LEAVE, end="", flush=True)
            if before is not None:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def say(self, sentence: str) -> None:
        """Show a sentence instead of a status, but only in full-screen mode."""
        if self.whole:
            print(HOME + sentence + TO_END + CLEAR, end="", flush=True)

    def draw(self, look: once.StatusView, choice: ViewChoice, source: str) -> None:
        """Draw the part of a status that fits the terminal, or print it all to a pipe or file."""
        first, body, source, keys = text(look, choice, source, terminal_width())
        if not self.whole:
            print("\n".join([first, *body, source, ""]), flush=True)
            return
        room = max(1, shutil.get_terminal_size((80, 24)).lines - 3)
        choice.top = max(0, min(choice.top, len(body) - room))
        part = body[choice.top : choice.top + room]
        if len(part) < len(body):
            end = choice.top + len(part)
            source = f"lines {choice.top + 1} to {end} of {len(body)}; Up and Down scroll"
        lines = [first, *part, source, keys]
        if self.coloured:
            colour = COLOURS.get(look.status.level, BOLD)
            lines[1] = f"\x1b[{BOLD};{colour}m{lines[1]}\x1b[0m"
        print(HOME + "\n".join(line + TO_END for line in lines) + CLEAR, end="", flush=True)


def text(
    look: once.StatusView, choice: ViewChoice, source: str, width: int
) -> tuple[str, list[str], str, str]:
    """Return four parts of the screen: the line about the machine, the lines of the selected view,
    the line about the source of the status, and the line that explains the keys."""
    first = cut(once.heading(look.status), width)
    keys = f"h help  q end  s sort ({choice.sort})  0-9 one GPU  a all"
    body = [printable(line) for line in _body(look, choice, width)]
    return first, body, cut(source, width), cut(keys, width)


def cut(line: str, width: int) -> str:
    """Return the line, truncated with an ellipsis if it is longer than `width`."""
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _body(look: once.StatusView, choice: ViewChoice, width: int) -> Iterator[str]:
    yield from once.verdict(look, width)
    if choice.shown == "h":
        yield from ("", *HELP)
    elif choice.shown == "g":
        yield ""
        yield from _one(look, choice.gpu, width)
    else:
        gpus = sorted(look.status.gpus, key=SORTS[choice.sort])
        yield from once.body(replace(look.status, gpus=tuple(gpus)), width)


def _one(look: once.StatusView, number: int, width: int) -> Iterator[str]:
    gpu = next((gpu for gpu in look.status.gpus if gpu.gpu == number), None)
    if gpu is None:
        yield f"There is no GPU {number}."
        return
    yield from once.gpus(replace(look.status, gpus=(gpu,)), width)
    yield ""
    for one in look.status.findings:
        if one.id in gpu.findings:
            yield from prose(one.brief, width)
    reasons = ", ".join(gpu.why)
    text = f"{gpu.text}: {reasons}" if reasons else gpu.text
    yield from prose(f"{text}. {gpu.do or ''}", width)
    yield from prose(gpu.note or "", width)
    for process in gpu.processes:
        held = process.memory_bytes
        parts = [
            process.program or "process",
            f"pid {process.pid}",
            process.user and f"of {process.user}",
            None if held is None else f"{held / once.GIB:.1f} GiB",
            None if process.time_ratio is None else f"{process.time_ratio:.0%} of the time",
        ]
        yield f"  {', '.join(filter(None, parts))}"
    yield f"  {gpu.uuid}"
