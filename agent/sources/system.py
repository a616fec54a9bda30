"""Which system this is, and how many of its GPUs answer."""

from collections.abc import Callable, Iterator

from agent import beats
from agent.backends.files import Files, read_text
from agent.gpus import NO_ANSWER_YET, Fleet
from agent.model import Absent, ReadKey, Reason, gauge
from agent.reads import Out, Read, fixed
from agent.specs import SystemSpec

INFO = gauge(
    "dgx_system_info",
    "1, with the system that the agent took this machine for, its product name and the versions "
    "of driver and NVML in the labels; what is not known is empty.",
    "agent/specs, /sys/class/dmi/id/product_name, nvmlSystemGetDriverVersion, "
    "nvmlSystemGetNVMLVersion",
    ("system", "title", "product", "driver_version", "nvml_version"),
)
GPUS = gauge(
    "dgx_system_gpus",
    "GPUs that answered when they were last asked; dgx_agent_source_up tells of a driver that "
    "hangs.",
    "nvmlDeviceGetCount, nvmlDeviceGetHandleByIndex",
)
GPUS_EXPECTED = gauge(
    "dgx_system_gpus_expected",
    "GPUs that the system has by its spec sheet; on a system that is not recognised, the most "
    "that answered since the agent started.",
    "agent/specs, else nvmlDeviceGetCount",
)

PRODUCT_NAME = "/sys/class/dmi/id/product_name"


def product_name(files: Files) -> str:
    """The maker's name of this machine; empty where the firmware tells none."""
    try:
        return read_text(files, PRODUCT_NAME)
    except Absent:
        return ""


class System:
    """Identity of the machine from the fleet as it is now."""

    def __init__(
        self,
        fleet: Callable[[], Fleet],
        recognise: Callable[[Fleet], SystemSpec | None],
        files: Files,
    ) -> None:
        self._fleet = fleet
        self._recognise = recognise
        self._product = product_name(files)

    def read(self, out: Out) -> None:
        fleet = self._fleet()
        spec = self._recognise(fleet)
        name, title = (spec.name, spec.title) if spec else ("", "")
        out.add(INFO, 1, name, title, self._product, fleet.driver_version, fleet.nvml_version)
        if not fleet.connected:
            waits = fleet.why_not == NO_ANSWER_YET
            reason = Reason.STALLED if waits else Reason.NO_DRIVER
            absent = Absent(reason, fleet.why_not)
            out.absent(GPUS, absent)
            out.absent(GPUS_EXPECTED, absent)
            return
        out.add(GPUS, fleet.answering)
        out.add(GPUS_EXPECTED, spec.gpus if spec else fleet.most)


def reads(system: System) -> Iterator[Read]:
    """One read of what is known in memory."""
    metrics = (INFO, GPUS, GPUS_EXPECTED)
    yield Read(ReadKey("system", "identity"), metrics, system.read, fixed(beats.TICK))
