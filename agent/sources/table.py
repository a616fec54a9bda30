"""All sources: what is built for each GPU, what for the host, and every metric they declare."""

from collections.abc import Iterable, Iterator
from types import ModuleType

from agent.backends.host import Host
from agent.clock import Clock
from agent.model import Metric
from agent.probe import Probe
from agent.reads import Read
from agent.sources import (
    activity,
    clocks,
    cpu,
    disk,
    ecc,
    gpu,
    infiniband,
    memory,
    network,
    nvlink,
    pcie,
    power,
    pressure,
    process,
    system,
    temperature,
    xid,
)
from agent.sources.options import HostOptions

GPU_SOURCES = (gpu, memory, power, clocks, temperature, process, activity, pcie, nvlink, ecc)
"""In the order of one turn: `activity` takes the GPM measurement that `pcie` and `nvlink` use."""

HOST_SOURCES = (disk, network, infiniband, cpu, pressure)
SOURCES: tuple[ModuleType, ...] = (system, *GPU_SOURCES, xid, *HOST_SOURCES)


def gpu_reads(probe: Probe) -> Iterator[Read]:
    """Every read of one GPU."""
    for source in GPU_SOURCES:
        yield from source.reads(probe)


def host_reads(host: Host, clock: Clock, options: HostOptions) -> Iterator[Read]:
    """Every read of the host."""
    for source in HOST_SOURCES:
        yield from source.reads(host, clock, options)


def declared(modules: Iterable[ModuleType]) -> Iterator[Metric]:
    """The metrics that modules declare at their top level, in order of declaration."""
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Metric):
                yield value
