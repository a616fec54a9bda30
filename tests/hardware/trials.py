"""The loads that are judged, and what is right to say of each GPU under them."""

import re
from dataclasses import dataclass

from agent.config.settings import Settings
from agent.limits.configured import LimitConfig, LimitsConfig
from agent.sources.network import NetworkConfig
from tests.hardware.judging import Expected
from tests.hardware.labelled import PACE

SETTLED = 5.0
"""Seconds of a steady load after which each tick is judged, and by which the verdict is due."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One load; `first` is expected of GPU 0, `others` of every other GPU of its job."""

    name: str
    first: Expected
    others: Expected | None = None  # a load of one GPU leaves the others alone, and unjudged
    words: tuple[str, ...] = ()  # kind and arguments of tests.hardware.labelled; none: no process
    seconds: float = 20.0  # of its steady phase
    onset: float = 0.0  # seconds of it before the verdict can be right
    scenario: str = ""  # what a simulated machine plays in its place; empty: it has nothing like it


BUSY = Expected(("busy",))
PEER = Expected(("starved/peer",))
HOST_THREAD = Expected(("starved/host_thread",), when_busy=("busy",))
"""Follows the activity measured, tick by tick: at 80 % and more the GPU is busy."""

TALKING = Expected(("communicating/nvlink",))


def _little(batch: int, expected: Expected = HOST_THREAD) -> Trial:
    scenario = "starved-host-thread" if batch == 16 else ""
    return Trial(f"littlecnn-{batch}", expected, words=("littlecnn", str(batch)), scenario=scenario)


ALONE: tuple[Trial, ...] = (
    Trial("idle", Expected(("idle",)), scenario="idle"),
    Trial("disk", Expected(("starved/disk",)), words=("disk",), scenario="starved-disk"),
    Trial("cpu", Expected(("starved/cpu",)), words=("cpu",), scenario="starved-cpu"),
    Trial(
        "network", Expected(("starved/network",)), words=("network",), scenario="starved-network"
    ),
    _little(16),
    _little(64),
    _little(256),
    # whatever its activity says: where it is below 80 %, no single cause need stand out
    _little(1024, Expected(("starved/host_thread", "starved/unknown"), when_busy=("busy",))),
    Trial("sleeps", Expected(("starved/unknown",)), words=("sleeps",)),
    Trial("copies", Expected(("starved/pcie",)), words=("copies",), scenario="starved-pcie"),
    Trial("vgg16", BUSY, words=("vgg16",), scenario="training"),
    Trial("resnet50", BUSY, words=("resnet50",), scenario="training"),
    Trial("graph", BUSY, words=("graph",)),
    Trial("held", Expected(("held",)), words=("held",), seconds=120, onset=60, scenario="held"),
)

TOGETHER: tuple[Trial, ...] = (
    Trial("all-reduce", TALKING, TALKING, words=("all-reduce",), scenario="nvlink-saturated"),
    Trial("balanced", BUSY, BUSY, words=("balanced",), scenario="training"),
    Trial("rank0-sleeps", Expected(("starved/unknown",)), PEER, words=("rank0-sleeps",)),
    Trial("rank0-double", BUSY, PEER, words=("rank0-double",), scenario="starved-peer"),
)


def config() -> Settings:
    """The loopback as a NIC whose limit is what the network load receives."""
    ignore = re.compile(NetworkConfig().ignore.pattern.replace("lo$|", ""))
    limit = LimitConfig("network", "lo", "receive", PACE)
    return Settings(NetworkConfig(ignore), LimitsConfig((limit,)))
