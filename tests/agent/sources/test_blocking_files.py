"""A file of the host that blocks costs its own source alone."""

import asyncio
import threading
from dataclasses import dataclass, replace

import pytest

from agent import simulator as simulation
from agent.cli.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.hardware.files import FileTree
from agent.series import SampleStore
from agent.sources.agent_health import SOURCE_UP
from tests.support.machines import first_gpus
from tests.support.patience import PATIENCE


@dataclass(slots=True)
class Blocking(FileTree):
    """Files of which those that end so block."""

    files: FileTree
    end: str
    free: threading.Event

    def read(self, path: str) -> str:
        if path.endswith(self.end):
            assert self.free.wait(PATIENCE)
        return self.files.read(path)

    def names(self, path: str) -> list[str]:
        return self.files.names(path)

    def link(self, path: str) -> str:
        return self.files.link(path)


@pytest.mark.parametrize(
    ("end", "down"),
    [
        ("/speed", "network"),
        ("/rate", "infiniband"),
        ("/device/state", "disk"),
        ("mounts", "mounts"),
    ],
)
def test_a_device_that_hangs_costs_its_source_alone(end: str, down: str) -> None:
    clock, free = SystemClock(20.0), threading.Event()
    machine = simulation.build(first_gpus("dgx-h100:idle", 1), clock)
    files = Blocking(machine.host.files, end, free)
    host = replace(machine.host, files=files)
    agent = Agent(Settings(), Hardware(lambda: machine.nvml, host, simulated=True), clock)

    def costs_its_source_alone() -> bool:
        up = SampleStore.of(agent.poller.latest).all(SOURCE_UP)
        others = [up.get((source,)) for source in ("kernel_log", "cpu", "pressure", "nvml")]
        return agent.poller.stuck == {down} and others == [1] * 4

    async def ticks() -> None:
        async with asyncio.timeout(PATIENCE):
            while not costs_its_source_alone():
                await agent.poller.tick()
                await clock.sleep(1.0)

    try:
        asyncio.run(ticks())
    finally:
        free.set()
