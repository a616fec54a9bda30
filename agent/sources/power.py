"""Power and energy."""

from collections.abc import Iterator

from agent import beats
from agent.backends.buffers import POWER_SAMPLES, SampleBuffer
from agent.backends.device import Device
from agent.model import GPU_LABELS, Absent, counter, gauge
from agent.odometers import Odometers
from agent.probe import Probe
from agent.reads import PERMANENT, Out, Read, Row

POWER = gauge(
    "dgx_gpu_power_watts",
    "Power drawn by the board in watts: a mean over one second on Hopper and newer, instantaneous "
    "on A100 and older.",
    "nvmlDeviceGetPowerUsage",
    GPU_LABELS,
)
POWER_LIMIT = gauge(
    "dgx_gpu_power_limit_watts",
    "The power limit now enforced, in watts.",
    "nvmlDeviceGetEnforcedPowerLimit",
    GPU_LABELS,
)
DEFAULT_LIMIT = gauge(
    "dgx_gpu_power_default_limit_watts",
    "The power limit that the board comes with, in watts; where dgx_gpu_power_limit_watts is lower "
    "somebody lowered it.",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    GPU_LABELS,
)
ENERGY = counter(
    "dgx_gpu_energy_joules_total",
    "Energy used in joules since the driver was loaded; on GPUs without an energy counter the "
    "driver's 50 Hz power samples, integrated since the agent started.",
    "nvmlDeviceGetTotalEnergyConsumption, else nvmlDeviceGetSamples(TOTAL_POWER)",
    GPU_LABELS,
)

DRAW = (Row[Device](POWER, lambda d: d.get("PowerUsage") / 1e3),)
LIMIT = (Row[Device](POWER_LIMIT, lambda d: d.get("EnforcedPowerLimit") / 1e3),)
BOARD = (Row[Device](DEFAULT_LIMIT, lambda d: d.get("PowerManagementDefaultLimit") / 1e3),)

MOST_WATTS = 5_000.0
"""No board draws more: a leap of the energy counter beyond this is a glitch."""


class EnergyCounter:
    """The driver's own counter, in millijoules."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._odometers = Odometers()

    def read(self, out: Out) -> None:
        joules = self._device.get("TotalEnergyConsumption") / 1e3
        self._odometers.add(out, ENERGY, joules, fastest=MOST_WATTS)


class EnergyFromPower:
    """Power samples integrated, for GPUs without an energy counter (P100, GeForce)."""

    def __init__(self, device: Device) -> None:
        self._buffer = SampleBuffer(device, POWER_SAMPLES)
        self._joules = 0.0

    def read(self, out: Out) -> None:
        self._joules += sum(s.value / 1e3 * s.seconds for s in self._buffer.take())
        out.add(ENERGY, self._joules)


def _energy(probe: Probe) -> Read:
    try:
        probe.device.get("TotalEnergyConsumption")
    except Absent as absent:
        if absent.reason in PERMANENT:
            integral = EnergyFromPower(probe.device)
            return probe.read("power", "energy", (ENERGY,), integral.read, beats.POWER_BUFFER)
    own = EnergyCounter(probe.device)
    return probe.read("power", "energy", (ENERGY,), own.read, beats.ENERGY)


def reads(probe: Probe) -> Iterator[Read]:
    """The reads of one GPU."""
    yield probe.table("power", "draw", DRAW, beats.TICK)
    yield probe.table("power", "limit", LIMIT, beats.THROTTLE)
    yield probe.table("power", "board", BOARD, beats.TOPOLOGY)
    yield _energy(probe)
