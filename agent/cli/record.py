"""The `dgx-telemetry record` command. It writes the raw responses of the hardware to a file."""

import argparse
import asyncio
import signal
import sys
from contextlib import suppress

from agent.cli.assembly import Agent, recorded
from agent.cli.options import hardware_of, settings_of
from agent.clock import SystemClock
from agent.config.atomic_file import check_target
from agent.errors import BadInput

ENDING = (signal.SIGTERM, signal.SIGHUP)


def run(arguments: argparse.Namespace) -> int:
    """Run the agent, and write the responses of its hardware to a file, atomically."""
    settings = settings_of(arguments)
    if (found := check_target(arguments.file)) and found.st_size:
        raise BadInput(f"{arguments.file}: exists, expected a free name")
    for number in ENDING:  # sent on shutdown or by a closed terminal; nohup ignores SIGHUP
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop_once)
    clock = SystemClock()
    hardware, recorder = recorded(hardware_of(arguments, clock), clock)
    agent = Agent(settings, hardware, clock)
    notes = []
    try:
        agent.watch.start()
        length = f"{arguments.seconds:g} s, Ctrl-C stops and keeps the tape"
        with suppress(OSError):  # nobody reads it
            print(f"recording to {arguments.file} for {length}", file=sys.stderr)
        ticks = agent.poller.run(lambda: recorder.writer.full)
        with suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(ticks, arguments.seconds))
    except KeyboardInterrupt:
        notes.append("stopped early, the recording so far is kept")
    if recorder.writer.full:
        notes.append("the tape is full, later readings are left out")
    recorder.write(arguments.file)
    for sentence in notes:  # printed last, because printing fails if the terminal is closed
        print(f"dgx-telemetry: {sentence}", file=sys.stderr)
    size = arguments.file.stat().st_size / 1e3
    print(f"{arguments.file}: {size:.0f} kB")
    return 0


def stop_once(*_: object) -> None:
    """Handle a stop signal: raise KeyboardInterrupt, so that the recording is written. Ignore
    further signals, because a shell and a terminal may both send one."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
