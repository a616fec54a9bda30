"""`dgx-telemetry record`: tape the backends' raw answers."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from agent.cli.assembly import Agent, build_agent, recorded
from agent.cli.options import hardware_of, settings_of
from agent.clock import Clock, SystemClock
from agent.config.whole_file import check_target
from agent.errors import BadInput
from agent.polling.intervals import TICK


def run(arguments: argparse.Namespace) -> int:
    """Run the agent between recorders for a while, then write the tape whole."""
    settings = settings_of(arguments)
    replaces = check_what_is_there(arguments.file)
    clock = SystemClock()
    hardware, recorder = recorded(hardware_of(arguments, clock), clock)
    agent = build_agent(settings, hardware, clock)
    agent.watch.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # keep what there is, as on Ctrl-C
    try:
        asyncio.run(tick_for(agent, clock, arguments.seconds, lambda: recorder.full))
    except KeyboardInterrupt:
        print("dgx-telemetry: stopped early, what was recorded is kept", file=sys.stderr)
    if recorder.full:
        print("dgx-telemetry: the tape is full, what came later is left out", file=sys.stderr)
    recorder.write(arguments.file)
    size = arguments.file.stat().st_size / 1e3
    print(f"{arguments.file}: {size:.0f} kB{', in place of an older tape' if replaces else ''}")
    return 0


def check_what_is_there(path: Path) -> bool:
    """Whether the tape will replace one that is there; raises BadInput where it would replace
    anything else, or cannot be written."""
    from agent.replay.tape import Tape

    place = path.resolve()
    check_target(place)
    if not place.exists() or not place.stat().st_size:
        return False
    if not Tape.begins(place):
        raise BadInput(
            f"{path}: is there and is no tape, expected a free name or a tape to replace"
        )
    return True


async def tick_for(
    agent: Agent, clock: Clock, seconds: float, full: Callable[[], bool] = lambda: False
) -> None:
    """Let an agent tick for so many seconds of its clock, or until nothing more is taken."""
    ticking = asyncio.create_task(agent.poller.run())
    end = clock.monotonic() + seconds
    while (left := end - clock.monotonic()) > 0 and not full():
        await clock.sleep(min(left, TICK))
    ticking.cancel()
