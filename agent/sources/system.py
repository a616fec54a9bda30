"""System identity of this machine, and the number of responding GPUs."""

from collections.abc import Callable, Iterator

from agent.config.settings import Configuration
from agent.hardware.files import FileTree, text_or_nothing
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


def product_name(files: FileTree) -> str:
    return text_or_nothing(files, PRODUCT_NAME)


class SystemFacts:
    """Reads the identity of the machine, and counts its GPUs."""

    def __init__(
        self,
        inventory: Callable[[], GpuInventory],
        configuration: Configuration,
        files: FileTree,
        expected: ExpectedGpus,
    ) -> None:
        self._expected = expected
        self._fleet = inventory
        self._configuration = configuration
        self._product = product_name(files)

    def read(self, out: ReadOutput) -> None:
        inventory = self._fleet()
        spec = self._configuration.current[MachineSpecs].system_of(inventory.gpus)
        name, title = (spec.name, spec.title) if spec else ("", "")
        out.add(
            INFO, 1, name, title, self._product, inventory.driver_version, inventory.nvml_version
        )
        if not inventory.connected:
            absent = Absent(inventory.reason, inventory.why_not)
            out.absent(GPUS, absent)
            out.absent(GPUS_EXPECTED, absent)
            return
        out.add(GPUS, inventory.answering + inventory.unmet)
        most = self._expected.most(inventory.most, out.at)
        said = self._configuration.current[SpecConfig].gpus
        out.add(GPUS_EXPECTED, said or (spec.gpus if spec else most))


def reads(system: SystemFacts) -> Iterator[Read]:
    metrics = (INFO, GPUS, GPUS_EXPECTED)
    yield Read(ReadKey("system", "identity"), metrics, system.read, fixed(intervals.TICK))
