"""Random faults of a simulated machine: GPUs, links, processes and devices come and go."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from agent.cli.assembly import Agent
from agent.config.settings import Section, Settings
from agent.hardware.schedulers import Schedulers, SlurmJob
from agent.limits.resolution import LimitConfig, LimitsConfig
from agent.simulator import SimulatedSystem, scenarios
from agent.sources.disk import DiskConfig
from agent.sources.network import NetworkConfig
from agent.sources.process import ProcessConfig
from agent.sources.workload import JobConfig
from tests.support import machine_controls
from tests.support.hotplug import KINDS, Hotplug
from tests.support.machine_controls import lose, reload_driver, restore, set_mig, stop_process

CALM = "training"
MOST_PLUGGED = 6
MOST_PROCESSES = 4
XIDS = (13, 31, 43, 48, 63, 79, 94)
CALLS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FUNCTIONS = CALLS["functions"]
CODES = (4, 6, 9, 10, 15, 999)
"""None that is a refusal for good: those are not asked again for an hour."""

CONFIGS: tuple[tuple[Section, ...], ...] = (
    (ProcessConfig(series=2), JobConfig(info=True)),
    (ProcessConfig(series=0), JobConfig(info=False)),
    (DiskConfig(re.compile("^nvme")), NetworkConfig(re.compile("^e"))),
    (LimitsConfig((LimitConfig("disk", "md0", "read", 1e9),)),),
)

HOSTILE: tuple[list[SlurmJob] | Exception, ...] = (
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RecursionError("too deep"),
    TimeoutError("squeue does not answer in 5 s"),
    MemoryError(),
    [SlurmJob("7", "\udcff\x1b[2J", gres=[("node[00001-99999]", "gpu:8(IDX:0-99999)")])] * 3000,
    [SlurmJob("", gres=[("[", "gpu:1g.10gb:1(IDX:2)")]), SlurmJob("9"), SlurmJob("\0" * 9999)],
)
"""Answers of Slurm."""


class HostileSlurm(Schedulers):
    """Answers as it was told to; without a job in calm."""

    def __init__(self) -> None:
        self.answer: list[SlurmJob] | Exception = []

    def slurm(self, host: str) -> list[SlurmJob]:
        if isinstance(self.answer, Exception):
            raise self.answer.with_traceback(None)  # else it holds the frames of each raise
        return self.answer


@dataclass(slots=True)
class RandomFaults:
    """Strikes a machine at random, always the same for the same seed; `heal` makes it whole."""

    machine: SimulatedSystem
    plugs: Hotplug
    agent: Agent
    home: Settings
    """Settings that `heal` restores."""
    slurm: HostileSlurm = field(default_factory=HostileSlurm)
    random: Random = field(default_factory=lambda: Random(7))
    struck: dict[str, int] = field(default_factory=dict)

    def strike(self) -> None:
        """One of the things that may happen."""
        name = self.random.choice(sorted(STRIKES))
        STRIKES[name](self)
        self.struck[name] = self.struck.get(name, 0) + 1

    def heal(self) -> None:
        """Everything is there again, and trains; what was plugged in or started is gone."""
        self.follow(self.home)
        self.slurm.answer = []
        self.machine.driver.failures.clear()
        self.machine.driver.hung = False
        for name in list(self.plugs.devices):
            self.plugs.unplug(name)
        if any(gpu.mig for gpu in self.machine.gpus):
            reload_driver(self.machine)  # as switching MIG off takes: a reset
        for gpu in self.machine.gpus:
            set_mig(self.machine, gpu.index, on=False)
            stop_process(self.machine, gpu.index)
            restore(self.machine, gpu.index)
        self.machine.set_scenario("idle")
        self.machine.set_scenario(CALM)  # a new job

    def gpu(self) -> int:
        """The index of any GPU."""
        return self.random.randrange(len(self.machine.gpus))

    def lose(self) -> None:
        lose(self.machine, self.gpu())

    def restore(self) -> None:
        for gpu in self.machine.gpus:
            if gpu.lost:
                restore(self.machine, gpu.index)

    def flap(self) -> None:
        gpu = self.machine.gpus[self.gpu()]
        if gpu.links:
            link = self.random.randrange(len(gpu.links))
            machine_controls.cut_link(self.machine, gpu.index, link)

    def repair(self) -> None:
        for gpu in self.machine.gpus:
            for link in gpu.links:
                link.cut = False

    def start(self) -> None:
        index = self.gpu()
        if len(self.machine.gpus[index].processes) < MOST_PROCESSES:
            machine_controls.start_process(self.machine, index)

    def stop(self) -> None:
        stop_process(self.machine, self.gpu())

    def plug(self) -> None:
        if len(self.plugs.devices) < MOST_PLUGGED:
            self.plugs.plug(self.random.choice(sorted(KINDS)))

    def unplug(self) -> None:
        if self.plugs.devices:
            self.plugs.unplug(self.random.choice(sorted(self.plugs.devices)))

    def fail(self) -> None:
        index = self.random.choice([None, self.gpu()])
        self.machine.driver.fail(self.random.choice(FUNCTIONS), self.random.choice(CODES), index)

    def work(self) -> None:
        self.machine.driver.failures.clear()

    def reload_driver(self) -> None:
        reload_driver(self.machine)

    def reset(self) -> None:
        machine_controls.reset_gpu(self.machine, self.gpu())

    def answer(self) -> None:
        self.slurm.answer = self.random.choice(HOSTILE)

    def xid(self) -> None:
        self.machine.driver.xid(self.gpu(), self.random.choice(XIDS))

    def partition(self) -> None:
        set_mig(self.machine, self.gpu(), on=True)

    def reload(self) -> None:
        self.follow(self.home.including(*self.random.choice(CONFIGS)))

    def follow(self, settings: Settings) -> None:
        self.agent.configuration.current = self.agent.complete(settings)

    def play(self) -> None:
        stops = scenarios.stops(self.machine.system)
        self.machine.set_scenario(self.random.choice(stops)[0])


STRIKES: dict[str, Callable[[RandomFaults], None]] = {
    "GPU lost": RandomFaults.lose,
    "GPUs back": RandomFaults.restore,
    "link down": RandomFaults.flap,
    "links up": RandomFaults.repair,
    "process starts": RandomFaults.start,
    "processes end": RandomFaults.stop,
    "device comes": RandomFaults.plug,
    "device goes": RandomFaults.unplug,
    "call fails": RandomFaults.fail,
    "calls work": RandomFaults.work,
    "driver reloaded": RandomFaults.reload_driver,
    "GPU reset": RandomFaults.reset,
    "answer of Slurm": RandomFaults.answer,
    "XID": RandomFaults.xid,
    "MIG": RandomFaults.partition,
    "configuration": RandomFaults.reload,
    "scenario": RandomFaults.play,
}
"""Faults that may strike, all equally likely."""
