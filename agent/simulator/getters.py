"""NVML getters that a table cannot describe. Each getter also has a row in nvml.toml."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pynvml
from msgspec.structs import astuple

from agent.hardware.buffers import POWER_SAMPLES, SAMPLE, UTILISATION_SAMPLES
from agent.simulator import driver
from agent.simulator.driver import ALL_ONES, CallRow, refuse
from agent.simulator.gpu import PCIE_OVERHEAD, SimulatedGpu, SimulatedGpuProcess
from agent.simulator.models import Architecture, address

LINK_ERRORS = ("replay", "recovery", "crc", "crc_data", "ecc")
"""Names of link error counters, indexed by `nvmlNvLinkErrorCounter_t`."""


def _threshold(_: Any, gpu: SimulatedGpu, threshold: int) -> int:
    known: tuple[int | None, ...] = astuple(gpu.model.thresholds)
    limit = known[threshold] if threshold < len(known) else None
    return refuse(driver.NOT_SUPPORTED) if limit is None else limit


def pci_info(bus: int) -> Any:
    info = pynvml.nvmlPciInfo_t()
    info.domain, info.bus, info.device = *divmod(bus, 256), 0
    info.busId = f"0000{address(bus).upper()}".encode()
    return info


def _samples(nvml: Any, gpu: SimulatedGpu, kind: int, last_seen: int) -> tuple[int, list[Any]]:
    if kind not in ((POWER_SAMPLES,) if gpu.mig else (POWER_SAMPLES, UTILISATION_SAMPLES)):
        refuse(driver.NOT_SUPPORTED)
    machine, buffer = nvml.machine, gpu.buffers
    now, seen = machine.now, machine.moment(last_seen)
    if kind == POWER_SAMPLES:
        found = [(at, round(watts * 1000)) for at, watts in buffer.power(now, seen)]
    else:
        found = list(buffer.utilisation(now, seen))
    timed = [(machine.micros(at), value) for at, value in found]
    samples = [
        pynvml.c_nvmlSample_t.from_buffer_copy(SAMPLE.pack(at, value))
        for at, value in timed
        if at > last_seen
    ]
    return (1, samples) if samples else refuse(driver.NOT_FOUND)


def _memory_v2(_: Any, gpu: SimulatedGpu, version: int) -> Any:
    if version != pynvml.nvmlMemory_v2:
        refuse(driver.VERSION_MISMATCH)
    total, reserved, used = gpu.model.memory, gpu.model.reserved, gpu.memory_used
    return pynvml.c_nvmlMemory_v2_t(version, total, reserved, total - reserved - used, used)


def _clock(kind: int, sm: int, memory: int) -> int:
    """Return a clock in MHz: graphics, SM, memory, or video (four fifths of the SM clock)."""
    return (sm, sm, memory, sm * 4 // 5)[kind]


def _pcie(nvml: Any, gpu: SimulatedGpu, counter: int) -> int:
    now = nvml.machine.now
    rate = gpu.meter.mean(("pcie_tx", "pcie_rx")[counter], now - 0.02, now)  # s
    return int(rate * PCIE_OVERHEAD / 1000)


def listed(process: SimulatedGpuProcess, gpu_instance: int = ALL_ONES) -> Any:
    within = ALL_ONES if gpu_instance == ALL_ONES else 0
    found = {"pid": process.pid, "usedGpuMemory": process.memory, "gpuInstanceId": gpu_instance}
    return pynvml.nvmlFriendlyObject({**found, "computeInstanceId": within})


def _processes(*, draws: bool) -> Any:
    return lambda _, gpu: [listed(one) for one in gpu.processes if one.draws == draws]


def _shares(nvml: Any, gpu: SimulatedGpu, last_seen: int) -> list[Any]:
    now = nvml.machine.now
    busy = gpu.buffers.percent("utilisation", now)
    if not busy or not gpu.processes:
        refuse(driver.NOT_FOUND)
    whole = sum(one.turns for one in gpu.processes)
    share = {"memUtil": 0, "encUtil": 0, "decUtil": 0, "timeStamp": nvml.machine.micros(now)}
    return [
        pynvml.nvmlFriendlyObject({"pid": p.pid, "smUtil": int(busy * p.turns / whole), **share})
        for p in gpu.processes
        if p.turns
    ]


def _ecc(nvml: Any, gpu: SimulatedGpu, severity: int, lifetime: int) -> int:
    """Return the number of ECC errors of severity 0 (corrected) or 1 (uncorrected). On GPUs with an
    odd index, the lifetime count of corrected errors starts at 1. In MIG mode, the volatile counts
    are not supported (nvml.h, note on nvmlDeviceGetMemoryErrorCounter; nvidia-smi -q output of an
    A100 in NVIDIA/nvidia-docker issue 1473)."""
    if gpu.mig and not lifetime:
        refuse(driver.NOT_SUPPORTED)
    before = gpu.index % 2 if lifetime and not severity else 0
    counter = "ecc" if severity else "ecc_corrected"
    return before + int(gpu.meter.read(counter, nvml.machine.now))


def _link_state(nvml: Any, gpu: SimulatedGpu, link: int) -> int:
    if code := gpu.link_code(link):
        refuse(code)
    return int(gpu.active(gpu.links[link]))


def _far_end(nvml: Any, gpu: SimulatedGpu, link: int) -> Any:
    """Return the PCI address of the device at the remote end of a link. If the device is an
    NVSwitch, all bits of the address are set. If the link is down, raise an NVML error."""
    peer = gpu.links[link].peer if _link_state(nvml, gpu, link) else refuse(driver.NOT_SUPPORTED)
    if peer is not None:
        return pci_info(nvml.machine.gpus[peer].bus)
    return pynvml.nvmlPciInfo_t(domain=ALL_ONES, bus=ALL_ONES, busId=b"FFFFFFFF:FF:FF.0")


def _link_errors(nvml: Any, gpu: SimulatedGpu, link: int, counter: int) -> int:
    _link_state(nvml, gpu, link)
    if not 0 <= counter < len(LINK_ERRORS):
        refuse(driver.INVALID_ARGUMENT)
    if LINK_ERRORS[counter] == "ecc" and gpu.model.architecture < Architecture.AMPERE:
        refuse(driver.NOT_SUPPORTED)
    return int(gpu.meter.read(f"{LINK_ERRORS[counter]}{link}", nvml.machine.now))


def _name(nvml: Any, gpu: SimulatedGpu) -> str:
    """Return the GPU name. Newer drivers add NVIDIA to names of GeForce, TITAN, and A100."""
    prefixed = nvml.machine.driver.numbers[0] >= gpu.model.prefixed_since
    return f"NVIDIA {gpu.model.name}" if prefixed else gpu.model.name


def _memory(_: Any, gpu: SimulatedGpu) -> Any:
    """Return version 1 of the memory info, which counts the driver's memory as used."""
    used = gpu.memory_used + gpu.model.reserved
    return pynvml.c_nvmlMemory_t(gpu.model.memory, gpu.model.memory - used, used)


ANSWERS: dict[str, Callable[..., Any]] = {
    "Name": _name,
    "Serial": lambda _, g: str(1_320_000_000_000 + 1_000_003 * g.index),
    "PciInfo": lambda _, g: pci_info(g.bus),
    "PersistenceMode": lambda n, _: int(n.machine.system.dgx),
    **dict.fromkeys(
        ("EnforcedPowerLimit", "PowerManagementDefaultLimit"),
        lambda _, g: round(g.model.power_limit * 1000),
    ),
    "TemperatureThreshold": _threshold,
    "UtilizationRates": lambda n, g: pynvml.c_nvmlUtilization_t(
        *(g.buffers.percent(name, n.machine.now) for name in ("utilisation", "controller"))
    ),
    "Samples": _samples,
    "ProcessUtilization": _shares,
    "MemoryInfo": _memory,
    "MemoryInfo_v2": _memory_v2,
    **{f"ComputeRunningProcesses{v}": _processes(draws=False) for v in ("", "_v2")},
    **{f"GraphicsRunningProcesses{v}": _processes(draws=True) for v in ("", "_v2")},
    "PowerUsage": lambda n, g: round(g.buffers.usage(n.machine.now) * 1000),
    "TotalEnergyConsumption": lambda n, g: int(g.meter.read("energy", n.machine.now) * 1000),
    "Temperature": lambda n, g, _: round(g.celsius(n.machine.now)),
    "TemperatureV": lambda n, g, *_: round(g.celsius(n.machine.now)),
    "FanSpeed_v2": lambda n, g, _: round(min(100, max(20, 2 * g.celsius(n.machine.now) - 60))),
    "PerformanceState": lambda _, g: 8 * (not g.awake and not g.model.datacentre),
    "ClockInfo": lambda _, g, kind: _clock(
        kind, g.sm_clock, g.model.clocks.memory if g.awake else g.model.clocks.idle_memory
    ),
    "MaxClockInfo": lambda _, g, kind: _clock(kind, g.model.clocks.sm, g.model.clocks.memory),
    "PcieReplayCounter": lambda n, g: int(g.meter.read("pcie_replays", n.machine.now)),
    "PcieThroughput": _pcie,
    "TotalEccErrors": _ecc,
    "RetiredPages": lambda _, g, cause: list(range(g.health.pages if cause else 0)),
    "NvLinkState": _link_state,
    "NvLinkRemotePciInfo": _far_end,
    "NvLinkRemoteDeviceType": lambda n, g, link: (
        2 * (_far_end(n, g, link) and g.links[link].peer is None)  # 0 a GPU, 2 an NVSwitch
    ),
    "NvLinkErrorCounter": _link_errors,
    "Count": lambda n: len(n.machine.gpus),
    "nvmlSystemGetDriverVersion": lambda n: n.machine.driver.version,
    "nvmlSystemGetNVMLVersion": lambda n: f"12.{n.machine.driver.version}",
}
"""Functions by NVML name. All other NVML functions return the values in nvml.toml."""


def fill(row: CallRow, nvml: Any, gpu: SimulatedGpu, info: Any) -> int:
    """Fill in the structure that the caller passed by reference, as the driver does."""
    target = getattr(info, "_obj", info)
    known = [name for name, since in row.versions.items() if gpu.driver.numbers >= since]
    if known and target.version not in [getattr(pynvml, name) for name in known]:
        refuse(driver.VERSION_MISMATCH)
    for member, gives in row.fills.items():
        setattr(target, member, given(gives, nvml, gpu))
    return 0


def given(gives: Any, nvml: Any, gpu: SimulatedGpu, *_: int) -> Any:
    if isinstance(gives, list):
        return [given(one, nvml, gpu) for one in gives]
    if isinstance(gives, dict):
        named = {name: given(one, nvml, gpu) for name, one in gives.items()}
        return pynvml.nvmlFriendlyObject(named)
    found = attrgetter(gives)(gpu) if isinstance(gives, str) else gives
    return int(found) if isinstance(found, bool) else found
