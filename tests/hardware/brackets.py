"""Every value of the agent between two readings of nvidia-smi, or of two direct NVML calls."""

import csv
import io
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agent.catalogue import METRICS
from agent.hardware.device import NvmlDevice
from agent.model import Metric
from agent.sources import clocks, nvlink, power, process, system, temperature
from tests.hardware.bench import Figure, Watcher

TRIES = 12
"""A value that moves between readings gets so many chances to stand still."""


class Bracket(NamedTuple):
    """A metric, its further labels, and who else knows the value: in the metric's unit."""

    metric: Metric
    labels: tuple[str, ...]
    reference: str  # a field of nvidia-smi --query-gpu
    scale: float = 1.0
    rounding: float = 0.5  # half of the reference's last digit, in the witness's unit


class Direct(NamedTuple):
    """The same, where nvidia-smi has no field: a direct call."""

    metric: Metric
    labels: tuple[str, ...]
    call: Callable[[Any, Any], float]  # of the library and the device's handle
    scale: float = 1.0


WORDS = {"Enabled": 1.0, "Disabled": 0.0, "Yes": 1.0, "No": 0.0, "None": 0.0}

SMI = [
    Bracket(
        METRICS[one["metric"]],
        tuple(one.get("labels", ())),
        one["field"],
        one.get("scale", 1.0),
        one.get("rounding", 0.5),
    )
    for one in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["smi"]
]

IDENTITY = {
    "model": "name",
    "pci_bus_id": "pci.bus_id",
    "serial": "serial",
    "vbios_version": "vbios_version",
    "uuid": "uuid",
}
"""Labels of dgx_gpu_info to fields of nvidia-smi."""


def _raw(function: str, *arguments: Any) -> Callable[[Any, Any], float]:
    """A pynvml function of the device, asked past the agent."""
    return lambda library, handle: float(getattr(library, function)(handle, *arguments))


def _raw_field(field: int, scope: int = 0) -> Callable[[Any, Any], float]:
    """A 64-bit field value by its number, asked past the agent's own table of numbers."""

    def ask(library: Any, handle: Any) -> float:
        answer = library.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
        if answer.nvmlReturn:
            raise library.NVMLError(answer.nvmlReturn)
        return float(answer.value.ullVal)

    return ask


ALL_LINKS = 0xFFFFFFFF
MHZ_TO_HERTZ, NANOSECONDS, KIB, MILLIJOULES = 1e6, 1e-9, 1024.0, 1e-3

DIRECT = (
    Direct(power.ENERGY, (), _raw("nvmlDeviceGetTotalEnergyConsumption"), MILLIJOULES),
    Direct(METRICS["dgx_pcie_replays_total"], (), _raw("nvmlDeviceGetPcieReplayCounter")),
    Direct(
        process.PROCESSES,
        (),
        lambda lib, gpu: float(len(lib.nvmlDeviceGetComputeRunningProcesses(gpu))),
    ),
    Direct(clocks.CLOCK_LIMIT, ("video",), _raw("nvmlDeviceGetMaxClockInfo", 3), MHZ_TO_HERTZ),
    Direct(clocks.THROTTLE, ("board_limit",), _raw_field(77), NANOSECONDS),
    Direct(clocks.THROTTLE, ("reliability",), _raw_field(79), NANOSECONDS),
    *(
        Direct(temperature.LIMIT, (name,), _raw("nvmlDeviceGetTemperatureThreshold", which))
        for name, which in {"shutdown": 0, "slowdown": 1, "memory": 2, "operating": 3}.items()
    ),
    Direct(nvlink.TRANSMITTED, (), _raw_field(138, ALL_LINKS), KIB),
    Direct(nvlink.RECEIVED, (), _raw_field(139, ALL_LINKS), KIB),
    Direct(nvlink.WIRE_TRANSMITTED, (), _raw_field(140, ALL_LINKS), KIB),
    Direct(nvlink.WIRE_RECEIVED, (), _raw_field(141, ALL_LINKS), KIB),
)


def smi(fields: list[str], index: str) -> dict[str, str]:
    """One reading of nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", f"--id={index}"]
    text = subprocess.run(
        [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    ).stdout
    row = next(csv.reader(io.StringIO(text), skipinitialspace=True))
    return dict(zip(fields, row, strict=True))


def number(text: str) -> float | None:
    text = text.strip()
    if text in WORDS:
        return WORDS[text]
    try:
        return float(text)
    except ValueError:
        return None


def measure(watcher: Watcher) -> Iterator[Figure]:
    """One figure a value: how often it stood within its bracket, of the tries that it took."""
    watcher.ticks(2.5)
    device = watcher.agent.gpus.watched.all_gpus()[0].device
    yield from _identity(watcher, device)
    wanted: dict[Any, str] = {}
    asked = [b.reference for b in SMI]
    answered: set[Any] = set()
    for _ in range(TRIES):
        before = smi(asked, device.labels[0]), _direct(device)
        for read in watcher.agent.gpus.reads():
            read.due = 0.0
        watcher.ticks(0.5)
        after = smi(asked, device.labels[0]), _direct(device)
        brackets: tuple[Bracket | Direct, ...] = (*SMI, *DIRECT)
        for bracket in brackets:
            if bracket not in answered:
                found = _held_by(bracket, watcher, device, before, after)
                wanted[bracket] = found
                if not found:
                    answered.add(bracket)
    for bracket, why in wanted.items():
        name = f"{bracket.metric}{list(bracket.labels) or ''}"
        yield Figure(f"bracketed {name}", float(not why), 1, 1, "", why)


def _identity(watcher: Watcher, device: NvmlDevice) -> Iterator[Figure]:
    shown = smi(list(IDENTITY.values()), device.labels[0])
    for label, field in IDENTITY.items():
        mine = getattr(device.identity, label)
        same = mine == shown[field]
        yield Figure(f"dgx_gpu_info {label}", float(same), 1, 1, "", f"{mine} / {shown[field]}")
    version = smi(["driver_version"], device.labels[0])["driver_version"]
    same = watcher.agent.gpus.inventory.driver_version == version
    yield Figure(f"{system.INFO} driver_version", float(same), 1, 1, "", version)


def _direct(device: NvmlDevice) -> dict[Direct, float | None]:
    values: dict[Direct, float | None] = {}
    for direct in DIRECT:
        try:
            asked = direct.call(device.nvml.library, device.handle)
            values[direct] = asked * direct.scale
        except Exception:  # whatever it is, then the agent must not answer either
            values[direct] = None
    return values


def _held_by(
    bracket: Bracket | Direct, watcher: Watcher, device: NvmlDevice, before: Any, after: Any
) -> str:
    """Empty if the agent's value is between its references', else what was seen."""
    points = watcher.points(bracket.metric, device.labels[0], *bracket.labels)
    mine = points[-1].value if points else None
    if isinstance(bracket, Bracket):
        low, high = (number(reading[0][bracket.reference]) for reading in (before, after))
        scale, slack = bracket.scale, bracket.rounding * bracket.scale
    else:
        low, high = (reading[1][bracket] for reading in (before, after))
        scale, slack = 1.0, 1e-9
    if low is None or high is None or mine is None:
        both = low is None and mine is None
        return "" if both else f"agent {mine}, reference {low} and {high}"
    least, most = sorted((low * scale, high * scale))
    slack += 1e-9 * abs(most)
    if least - slack <= mine <= most + slack:
        return ""
    return f"agent {mine:.9g}, reference {least:.9g} to {most:.9g}"
