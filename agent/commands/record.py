"""`dgx-telemetry record`: tape the backends' raw answers."""

import argparse
import asyncio
import signal
import sys

from agent.assembly import Agent, build_agent, recorded
from agent.clock import Clock, SystemClock
from agent.commands.options import config_of, hardware_of
from agent.whole_file import check_target


def run(arguments: argparse.Namespace) -> int:
    """Run the agent between recorders for a while, then write the tape whole."""
    config = config_of(arguments)
    check_target(arguments.file.resolve())
    clock = SystemClock()
    hardware, recorder = recorded(hardware_of(arguments, clock), clock)
    agent = build_agent(config, hardware, clock)
    agent.watch.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # keep what there is, as on Ctrl-C
    try:
        asyncio.run(tick_for(agent, clock, arguments.seconds))
    except KeyboardInterrupt:
        print("dgx-telemetry: stopped early, what was recorded is kept", file=sys.stderr)
    recorder.write(arguments.file)
    size = arguments.file.stat().st_size / 1e3
    print(f"{arguments.file}: {size:.0f} kB")
    return 0


async def tick_for(agent: Agent, clock: Clock, seconds: float) -> None:
    """Let an agent tick for so many seconds of its clock."""
    ticking = asyncio.create_task(agent.poller.run())
    await clock.sleep(seconds)
    ticking.cancel()
