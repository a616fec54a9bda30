"""Identity of this system, and the number of GPUs that respond."""

from collections.abc import Callable, Iterator

from agent.config.settings import Configuration
from agent.metrics import declared_beside
from agent.model import Absent, ReadKey
from agent.polling import intervals
from agent.polling.expected_gpus import ExpectedGpus
from agent.polling.gpu_state import GpuInventory
from agent.polling.reads import Read, ReadOutput, fixed
from agent.specs.sheets import MachineSpecs, SpecConfig

_METRICS = declared_beside(__file__)
INFO = _METRICS["dgx_system_info"]
GPUS = _METRICS["dgx_system_gpus"]
GPUS_EXPECTED = _METRICS["dgx_system_gpus_expected"]

PRODUCT_NAME = "/sys/class/dmi/id/product_name"
"""The product name set by the manufacturer."""


def reads(
    found: Callable[[], GpuInventory],
    configuration: Configuration,
    product: str,
    expected: ExpectedGpus,
) -> Iterator[Read]:
    """Yield the read of the machine's identity and number of GPUs."""

    def read(out: ReadOutput) -> None:
        inventory, settings = found(), configuration.current
        spec = settings[MachineSpecs].system_of(inventory.gpus)
        name, title = (spec.name, spec.title) if spec else ("", "")
        out.add(INFO, 1, name, title, product, inventory.driver_version, inventory.nvml_version)
        if not inventory.connected:
            absent = Absent(inventory.reason, inventory.why_not)
            out.absent(GPUS, absent)
            out.absent(GPUS_EXPECTED, absent)
            return
        out.add(GPUS, inventory.answering + inventory.unmet)
        most = expected.most(inventory.most, out.at)
        out.add(GPUS_EXPECTED, settings[SpecConfig].gpus or (spec.gpus if spec else most))

    metrics = (INFO, GPUS, GPUS_EXPECTED)
    yield Read(ReadKey("system", "identity"), metrics, read, fixed(intervals.TICK))
