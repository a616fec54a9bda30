"""Files of the host that hold anything at all, or block: each costs its own values alone."""

import asyncio
import threading
from dataclasses import dataclass, field, replace
from math import isfinite
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent import simulator as simulation
from agent.cli.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.hardware.files import FileTree
from agent.hardware.host import Host
from agent.series import SampleStore
from agent.sources.agent_health import SOURCE_UP
from agent.sources.process import ProcessConfig
from agent.sources.workload import JobConfig
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import AgentBench, first_gpus, watched
from tests.support.patience import PATIENCE

ODD = (
    *("", "\0", "\n", " ", "-1", "0x", "0", "max", "nan", "inf", "-inf", "1e999", "½", "٣", "²"),
    *("9" * 30, "9" * 400, "9" * 5000, "4294967295", "18446744073709551615", "x" * 70_000),
    *("0-99999999", "a:b:c", "0::/../..", "0:", "some avg10=0 total=x", "some total=9"),
    *("md0 : active raid5", "5: LinkUp", "4:", ")", "1 (a) R", "Cpus_allowed_list:\t7-3"),
    *("Uid:\tx", "PPid:\t1", "\ud800", "1\n" * 5000),
)
ERRNOS = (1, 2, 5, 13, 19, 20, 21, 22, 61, 95, 110)


@dataclass(slots=True)
class Garbled(FileTree):
    """Files of which a share, another each time, is spoilt: by other text, by an error."""

    files: FileTree
    random: Random
    texts: list[str]
    share: float
    spoilt: int = 0
    kept: dict[str, str] = field(default_factory=dict)

    def read(self, path: str) -> str:
        return self._spoil(self.files.read(path))

    def link(self, path: str) -> str:
        return self._spoil(self.files.link(path))

    def names(self, path: str) -> list[str]:
        names = self.files.names(path)
        if not self._strikes():
            return names
        if self.random.random() < 0.5:
            raise OSError(self.random.choice(ERRNOS), "spoilt", path)
        odd = (self._text().replace("/", "|").replace("\0", "")[:200] for _ in range(3))
        return sorted({*names[::2], *filter(None, odd)})

    def _spoil(self, text: str) -> str:
        if not self._strikes():
            return text
        if self.random.random() < 0.2:
            raise OSError(self.random.choice(ERRNOS), "spoilt")
        return self._text(text)

    def _strikes(self) -> bool:
        strikes = self.random.random() < self.share
        self.spoilt += strikes
        return strikes

    def _text(self, text: str = "") -> str:
        """Other text, or this one cut, doubled or with a word replaced."""
        words = text.split(" ")
        if len(words) > 1 and self.random.random() < 0.5:
            words[self.random.randrange(len(words))] = self.random.choice(self.texts)
            return " ".join(words)
        half = text[: self.random.randrange(len(text) + 1)]
        return self.random.choice([*self.texts, half, half + half])


def garbled(system: str, seed: int, texts: list[str], share: float) -> tuple[AgentBench, Garbled]:
    clock = FrozenClock()
    machine = simulation.SimulatedSystem(simulation.parse(system), clock)
    files = Garbled(machine.host.files, Random(seed), texts, 0.0)
    host = Host(files, machine.host.psutil, machine.host.login)
    bench = watched(machine, clock, Settings(ProcessConfig(series=4), JobConfig(info=True)), host)
    files.share = share
    return bench, files


SYSTEMS = st.sampled_from(["dgx-station-v100:starved-disk", "gtx-1080:starved-cpu"])


@settings(max_examples=12)
@given(
    SYSTEMS, st.integers(0, 2**32), st.lists(st.text(max_size=30), max_size=5), st.floats(0.02, 1)
)
def test_what_a_file_holds_costs_at_most_its_own_values(
    system: str, seed: int, texts: list[str], share: float
) -> None:
    bench, files = garbled(system, seed, [*ODD, *texts], share)
    for _ in range(7):
        asyncio.run(bench.agent.poller.tick())
        bench.clock.advance(2.0)
        snapshot = bench.latest
        assert [r.failure for r in snapshot.readings.values() if r.failure] == []
        assert all(isfinite(value) for _, _, value in snapshot.samples(snapshot.at))
    assume(files.spoilt)  # a small share may hit no file
    assert bench.scrape()


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
    machine = simulation.SimulatedSystem(first_gpus("dgx-h100:idle", 1), clock)
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
