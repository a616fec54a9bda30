"""`dgx-telemetry watch`: what `once` says, on the whole terminal, each second, keys as in top."""

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agent.cli import once
from agent.cli.assembly import build_agent
from agent.cli.first_readings import TIMEOUT, settled
from agent.cli.flow import flows
from agent.cli.options import hardware_of, settings_of
from agent.cli.table import prose, terminal_width
from agent.cli.view import view_of
from agent.clock import SystemClock
from agent.model import Snapshot
from agent.series import SampleStore
from exporters.live.findings_document import findings_document
from exporters.live.frame import whole
from exporters.live.page_state import PageState
from exporters.live.view import View

Document = dict[str, Any]

AFRESH = 5
"""Ticks between two looks for findings, which take milliseconds."""

SETTLING = 2
"""Ticks after the first readings: what moved between two of them has a rate, and what failed at the
start of the driver has been asked again."""

ENDING = signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT
"""As q does: what ended at once would leave the terminal as it was drawn on."""

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_END, CLEAR = "\x1b[H", "\x1b[K", "\x1b[J"
BOLD, RED, YELLOW, GREEN, DIM = "1", "31", "33", "32", "2"
LEVELS = {"wrong": RED, "costly": YELLOW, "good": GREEN}
SORTS: Mapping[str, Callable[[Document], float]] = {
    "index": lambda gpu: int(gpu["gpu"]),
    "activity": lambda gpu: -_value(gpu, "activity"),
    "memory": lambda gpu: -_value(gpu, "memory"),
    "power": lambda gpu: -_value(gpu, "power"),
}
HELP = (
    "a  all of it: GPUs, jobs, data paths (at the start)",
    "0-9  one GPU: why, what to do, who is on it",
    "p  data paths",
    "j  jobs",
    "s  sort GPUs by index, activity, memory, power",
    "h  this help",
    "q  end",
)


def _value(gpu: Document, name: str) -> float:
    return next((m["value"] or 0.0 for m in gpu["meters"] if m["name"] == name), 0.0)


@dataclass(slots=True)
class ViewChoice:
    """What the keys have chosen; `gpu` is an index."""

    shown: str = "a"
    gpu: str = ""
    sort: str = "index"
    ended: bool = False

    def press(self, key: str) -> None:
        """Take one key; one that means nothing changes nothing."""
        if key == "q":
            self.ended = True
        elif key.isdigit():
            self.shown, self.gpu = "g", key
        elif key == "s":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key in "apjh?":
            self.shown = key.replace("?", "h")


def run(arguments: argparse.Namespace) -> int:
    """Show the machine until q or Ctrl-C."""
    logging.getLogger().addHandler(logging.NullHandler())  # the screen tells of what is wrong
    clock = SystemClock()
    hardware = settled(hardware_of(arguments, clock), clock)
    agent = build_agent(settings_of(arguments), hardware, clock)
    view = view_of(agent, hardware)
    able = os.environ.get("TERM", "dumb") != "dumb"
    choice, screen = ViewChoice(), Screen(sys.stdout.isatty() and able)
    page_state = PageState(view)

    async def look() -> None:
        agent.start()
        ticking = asyncio.create_task(agent.poller.run())
        ticked = asyncio.Event()
        agent.poller.listeners.append(lambda _: ticked.set())
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, lambda: _press("q", choice, ticked))
        if sys.stdin.isatty() and screen.whole:
            loop.add_reader(sys.stdin, lambda: _press(_keys(), choice, ticked))
        late, early = clock.monotonic() + TIMEOUT, SETTLING
        while not choice.ended and not ticking.done():
            await ticked.wait()
            ticked.clear()
            if clock.monotonic() < late and (agent.poller.waiting_for() or early):
                early -= not agent.poller.waiting_for()
                screen.say("Reading this machine for the first time.")
            else:
                await _show(view, page_state, choice, screen)
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking  # what broke is told, not swallowed

    with screen.taken():
        asyncio.run(look())
    return 0


def _keys() -> str:
    """Keys that are there."""
    return os.read(sys.stdin.fileno(), 16).decode(errors="ignore")


def _press(keys: str, choice: ViewChoice, ticked: asyncio.Event) -> None:
    """Take them, and draw at once."""
    for key in keys:
        choice.press(key)
    ticked.set()


async def _show(view: View, page_state: PageState, choice: ViewChoice, screen: "Screen") -> None:
    snapshot: Snapshot = view.latest()
    known = page_state.known
    if snapshot.tick - known.tick >= AFRESH or known.tick < 0:
        known = await asyncio.to_thread(findings_document, view)
    page_state.take(snapshot, known)
    frame = whole(page_state.machine(), page_state.tick())
    screen.draw(frame, choice, view.samples)


class Screen:
    """The terminal, or lines one below the other where there is none."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.coloured = whole and not os.environ.get("NO_COLOR")

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The alternate screen, each key as it is pressed; as it was again at the end."""
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
        """Where there is no frame yet; nothing among lines."""
        if self.whole:
            print(HOME + sentence + TO_END + CLEAR, end="", flush=True)

    def draw(self, frame: Document, choice: ViewChoice, samples: SampleStore) -> None:
        """One frame, cut to what fits; the size is asked each time."""
        size = shutil.get_terminal_size((80, 24))
        lines = list(text(frame, choice, samples, terminal_width()))
        if not self.whole:
            print("\n".join([*lines, ""]), flush=True)
            return
        cut = [*lines[: size.lines - 2][: len(lines) - 1], lines[-1]]  # the keys stay in sight
        styled = list(self._styled(cut, frame))
        print(HOME + "\n".join(line + TO_END for line in styled) + CLEAR, end="", flush=True)

    def _styled(self, lines: Iterable[str], frame: Document) -> Iterator[str]:
        colour = LEVELS.get(frame["level"], BOLD)
        wrong = {finding["sentence"][:20] for finding in frame["findings"]}
        for number, line in enumerate(lines):
            code = f"{BOLD};{colour}" if number == 1 else ""
            if any(line.strip().startswith(start) for start in wrong):
                code = RED
            yield f"\x1b[{code}m{line}\x1b[0m" if code and self.coloured else line


def text(frame: Document, choice: ViewChoice, samples: SampleStore, width: int) -> Iterator[str]:
    """The lines of one frame: the machine, the verdict, what was chosen, the keys."""
    host = frame["machine"]["host"]
    told = datetime.fromtimestamp(frame["timestamp"], UTC).astimezone().strftime("%H:%M:%S")
    first = f"{host}  {once.machine(samples)}"[: width - len(told) - 2]
    yield f"{first}{told:>{width - len(first)}}"
    yield from once.verdict(frame, width)
    yield ""
    if choice.shown == "h":
        yield from HELP
    elif choice.shown == "p":
        yield from flows(frame["paths"], width)
    elif choice.shown == "j":
        yield from once.jobs(frame["jobs"], width) if frame["jobs"] else ["No job runs."]
    elif choice.shown == "g":
        yield from _one(frame, choice.gpu, samples, width)
    else:
        frame = {**frame, "gpus": sorted(frame["gpus"], key=SORTS[choice.sort])}
        yield from once.body(frame, samples, width)
    yield ""
    yield f"h help  q end  s sort ({choice.sort})  0-9 one GPU  p paths  j jobs  a all"[:width]


def _one(frame: Document, index: str, samples: SampleStore, width: int) -> Iterator[str]:
    found = [gpu for gpu in frame["gpus"] if gpu["gpu"] == index]
    if not found:
        yield f"There is no GPU {index}."
        return
    yield from once.gpus(found, samples, width)
    yield from once.times(found, width)
    (gpu,) = found
    yield ""
    yield from prose(f"{gpu['sentence']}. {gpu['advice']}", width)
    yield from prose(gpu["note"], width)
    for one in gpu["processes"]:
        held = "" if one["bytes"] is None else f", {one['bytes'] / once.GIB:.1f} GiB"
        held += "" if one["share"] is None else f", {one['share']:.0%} of the time"
        user = f", of {one['user']}" if one["user"] else ""
        yield f"  {one['program'] or 'process'}, pid {one['pid']}{user}{held}"
    yield f"  {gpu['uuid']}"
