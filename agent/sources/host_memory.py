"""Memory of the host: its size, and how much programs could still get."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.files import FileTree, read_text
from agent.hardware.host import Host
from agent.model import Absent, Metric, ReadKey, Reason, gauge
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import HostOptions

TOTAL = gauge(
    "dgx_host_memory_total_bytes", "Memory of the host, in bytes.", "MemTotal of /proc/meminfo"
)
AVAILABLE = gauge(
    "dgx_host_memory_available_bytes",
    "Memory of the host that programs could get without swapping, in bytes: what is free, and "
    "caches that can be dropped.",
    "MemAvailable of /proc/meminfo",
)

MEMINFO = "/proc/meminfo"
LINES: dict[str, Metric] = {"MemTotal": TOTAL, "MemAvailable": AVAILABLE}
KIB = 1024
MOST_DIGITS = 15


def _read(files: FileTree, out: ReadOutput) -> None:
    """The lines of /proc/meminfo that matter; one that is missing costs only itself."""
    lines = read_text(files, MEMINFO).splitlines()
    found = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    for name, metric in LINES.items():
        amount, *unit = found.get(name) or ("",)
        if amount.isdecimal() and len(amount) <= MOST_DIGITS and unit == ["kB"]:
            out.add(metric, int(amount) * KIB)
        else:
            out.absent(metric, Absent(Reason.UNKNOWN, f"{MEMINFO} has no {name} in kB"))


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    run = partial(_read, host.files)
    yield Read(ReadKey("host_memory", "now"), (TOTAL, AVAILABLE), run, options.every, varies=True)
