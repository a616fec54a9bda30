"""All sources: what is built for each GPU, what for the host, and every metric they declare."""

from collections.abc import Iterable, Iterator
from types import ModuleType

from agent.clock import Clock
from agent.hardware.host import Host
from agent.jobs.allocation import Allocations
from agent.model import Metric
from agent.polling.gpu_processes import GpuProcesses
from agent.polling.reads import Read
from agent.sources import (
    activity,
    allocation,
    c2c,
    chassis,
    chassis_faults,
    clocks,
    cpu,
    cycles,
    disk,
    disk_faults,
    ecc,
    fabric,
    fabric_service,
    filesystem,
    gpu,
    host_memory,
    infiniband,
    instances,
    kernel_log,
    media,
    memory,
    nccl,
    network,
    nvlink,
    nvlink_quality,
    pcie,
    pcie_switch,
    power,
    pressure,
    process,
    system,
    temperature,
    workload,
    xid,
)
from agent.sources.gpu_context import GpuContext
from agent.sources.options import HostOptions

GPU_SOURCES = (
    *(gpu, memory, power, clocks, temperature, process, instances, activity, media, pcie),
    *(pcie_switch, nvlink, fabric, nvlink_quality, c2c, cycles, ecc),
)
"""In the order of one turn: `activity` takes the GPM measurement that `pcie` and `nvlink` use."""

HOST_SOURCES = (
    *(disk, disk_faults, network, infiniband, cpu, host_memory, pressure, filesystem),
    *(chassis, chassis_faults, fabric_service),
)
SOURCES: tuple[ModuleType, ...] = (
    system,
    *GPU_SOURCES,
    xid,
    kernel_log,
    *HOST_SOURCES,
    allocation,
    workload,
    nccl,
)


def gpu_reads(gpu_context: GpuContext) -> Iterator[Read]:
    """Every read of one GPU."""
    for source in GPU_SOURCES:
        yield from source.reads(gpu_context)


def host_reads(
    host: Host, clock: Clock, options: HostOptions, gpu_processes: GpuProcesses
) -> Iterator[Read]:
    """Every read of the host."""
    for source in HOST_SOURCES:
        yield from source.reads(host, clock, options)
    allocations = Allocations()
    yield from allocation.reads(host, options, gpu_processes, allocations)
    yield from workload.reads(host, clock, options, gpu_processes, allocations)


def declared(modules: Iterable[ModuleType]) -> Iterator[Metric]:
    """The metrics that modules declare at their top level, in order of declaration."""
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Metric):
                yield value
