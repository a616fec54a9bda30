"""What befalls a simulated machine in a soak: GPUs, links, processes and devices come and go."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from agent.assembly import Agent
from agent.backends.simulated import Machine, scenarios
from agent.backends.simulated.world import World
from agent.config import (
    Config,
    DiskConfig,
    JobConfig,
    LimitConfig,
    NetworkConfig,
    ProcessConfig,
)
from agent.settings import Settings
from tests.hotplug import KINDS, Hotplug

CALM = "training"
MOST_PLUGGED = 6
MOST_PROCESSES = 4
XIDS = (13, 31, 43, 48, 63, 79, 94)
FUNCTIONS = (
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetCount",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlEventSetCreate",
    "nvmlEventSetWait",
)
CODES = (4, 6, 9, 10, 15, 999)
"""None that is a refusal for good: those are not asked again for an hour."""

CONFIGS: tuple[dict[str, Any], ...] = (
    {"process": ProcessConfig(series=2), "job": JobConfig(info=True)},
    {"process": ProcessConfig(series=0), "job": JobConfig(info=False)},
    {"disk": DiskConfig(ignore="^nvme"), "network": NetworkConfig(ignore="^e")},
    {"limit": (LimitConfig("disk", "md0", "read", 1e9),)},
)


@dataclass(slots=True)
class Turmoil:
    """Strikes a machine at random, always the same for the same seed; `heal` makes it whole."""

    machine: Machine
    plugs: Hotplug
    agent: Agent
    home: Config
    """What `heal` puts in force again."""
    random: Random = field(default_factory=lambda: Random(7))
    struck: dict[str, int] = field(default_factory=dict)

    @property
    def world(self) -> World:
        return self.machine.world

    def strike(self) -> None:
        """One of the things that may happen."""
        name = self.random.choice(sorted(STRIKES))
        STRIKES[name](self)
        self.struck[name] = self.struck.get(name, 0) + 1

    def heal(self) -> None:
        """Everything is there again, and trains; what was plugged in or started is gone."""
        self.follow(self.home)
        self.world.failures.clear()
        self.world.hang(on=False)
        for name in list(self.plugs.devices):
            self.plugs.unplug(name)
        if any(gpu.mig for gpu in self.world.gpus):
            self.world.reload_driver()  # as switching MIG off takes: a reset
        for gpu in self.world.gpus:
            self.world.set_mig(gpu.index, on=False)
            self.world.stop_process(gpu.index)
            self.world.restore(gpu.index)
        self.world.set_scenario("idle")
        self.world.set_scenario(CALM)  # a new job

    def gpu(self) -> int:
        """The index of any GPU."""
        return self.random.randrange(len(self.world.gpus))

    def lose(self) -> None:
        self.world.lose(self.gpu())

    def restore(self) -> None:
        for gpu in self.world.gpus:
            if gpu.lost:
                self.world.restore(gpu.index)

    def flap(self) -> None:
        gpu = self.world.gpus[self.gpu()]
        if gpu.links:
            self.world.cut_link(gpu.index, self.random.randrange(len(gpu.links)))

    def mend(self) -> None:
        for gpu in self.world.gpus:
            for link in gpu.links:
                link.cut = False

    def start(self) -> None:
        index = self.gpu()
        if len(self.world.gpus[index].processes) < MOST_PROCESSES:
            self.world.start_process(index)

    def stop(self) -> None:
        self.world.stop_process(self.gpu())

    def plug(self) -> None:
        if len(self.plugs.devices) < MOST_PLUGGED:
            self.plugs.plug(self.random.choice(sorted(KINDS)))

    def unplug(self) -> None:
        if self.plugs.devices:
            self.plugs.unplug(self.random.choice(sorted(self.plugs.devices)))

    def fail(self) -> None:
        index = self.random.choice([None, self.gpu()])
        self.world.fail(self.random.choice(FUNCTIONS), self.random.choice(CODES), index)

    def work(self) -> None:
        self.world.failures.clear()

    def reload_driver(self) -> None:
        self.world.reload_driver()

    def reset(self) -> None:
        self.world.reset_gpu(self.gpu())

    def xid(self) -> None:
        self.world.xid(self.gpu(), self.random.choice(XIDS))

    def partition(self) -> None:
        self.world.set_mig(self.gpu(), on=True)

    def reload(self) -> None:
        self.follow(replace(self.home, **self.random.choice(CONFIGS)))

    def follow(self, config: Config) -> None:
        self.agent.follow(Settings.of(config, self.agent.product))

    def play(self) -> None:
        stops = scenarios.stops(self.world.system)
        self.world.set_scenario(self.random.choice(stops))


STRIKES: dict[str, Callable[[Turmoil], None]] = {
    "GPU lost": Turmoil.lose,
    "GPUs back": Turmoil.restore,
    "link down": Turmoil.flap,
    "links up": Turmoil.mend,
    "process starts": Turmoil.start,
    "processes end": Turmoil.stop,
    "device comes": Turmoil.plug,
    "device goes": Turmoil.unplug,
    "call fails": Turmoil.fail,
    "calls work": Turmoil.work,
    "driver reloaded": Turmoil.reload_driver,
    "GPU reset": Turmoil.reset,
    "XID": Turmoil.xid,
    "MIG": Turmoil.partition,
    "configuration": Turmoil.reload,
    "scenario": Turmoil.play,
}
"""What may happen, each as likely as the others."""
