"""The table of all sources, their reads for each GPU and for the host, and their metrics."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType

from agent.config.decoding import TextCheck
from agent.config.settings import Section, Settings
from agent.hardware.host import Host
from agent.metrics import Declarations
from agent.model import Absent, Labels, Metric, ReadKey, Reason
from agent.polling import intervals
from agent.polling.reads import OFF, Read, ReadOutput, fixed
from agent.sources.context import GpuContext, HostOptions


def _modules(names: str) -> tuple[ModuleType, ...]:
    return tuple(import_module(f"agent.sources.{name}") for name in names.split())


GPU_SOURCES = _modules(
    "gpu memory power clocks temperature process instances activity pcie nvlink fabric ecc"
)  # in the order in which they are read in a turn
HOST_SOURCES = _modules("disk network infiniband host chassis")
ALWAYS = _modules("system")  # sources that cannot be disabled
SOURCES = (
    *ALWAYS,
    *GPU_SOURCES,
    *_modules("xid kernel_log"),
    *HOST_SOURCES,
    *_modules("allocation workload"),
)


def name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


NAMES = sorted(name_of(module) for module in SOURCES if module not in ALWAYS)


class SourcesConfig(Section, frozen=True):
    """Settings of sources. The sources in `disable` are not read. Changes take effect after a
    restart. The source `system`, which identifies the machine, cannot be disabled."""

    table, at_start = "sources", ("disable",)
    disable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.disable:
            TextCheck(NAMES.__contains__, f"one of {', '.join(NAMES)}").check(name, "disable")


def unless_off(
    module: ModuleType, settings: Settings, reads: Iterable[Read], labels: Labels = ()
) -> Iterator[Read]:
    """Yield the reads of a source, or one read that reports that the source is disabled."""
    name = name_of(module)
    if name not in settings[SourcesConfig].disable:
        yield from reads
        return

    def run(_: ReadOutput) -> None:
        raise Absent(Reason.NOT_CONFIGURED, "sources.disable names its source")

    key, metrics = ReadKey(name, OFF, *labels[1:]), tuple(declared([module]))
    yield Read(key, metrics, run, fixed(intervals.TOPOLOGY), labels)


def gpu_reads(gpu_context: GpuContext) -> Iterator[Read]:
    settings, labels = gpu_context.configuration.current, gpu_context.device.labels
    for source in GPU_SOURCES:
        yield from unless_off(source, settings, source.reads(gpu_context), labels)


def host_reads(host: Host, options: HostOptions) -> Iterator[tuple[str, Read]]:
    """Yield each read of the host with the name of its worker. Reads that may run every tick and
    access no device share a worker. Each source has another worker for its other reads."""
    for source in HOST_SOURCES:
        name = name_of(source)
        rest = "mounts" if name == "host" else name
        for read in unless_off(source, options.settings, source.reads(host, options)):
            yield "host" if read.varies and name != "infiniband" else rest, read


def declared(modules: Iterable[ModuleType]) -> Iterator[Metric]:
    """Yield the metrics that the modules declare, in the order of declaration."""
    for module in modules:
        values = vars(module).values()
        named = {value.name: value for value in values if isinstance(value, Metric)}
        for declarations in values:
            if isinstance(declarations, Declarations):
                named = declarations | named
        yield from named.values()
