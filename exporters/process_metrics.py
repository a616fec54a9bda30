"""The `process_*` metrics of the agent, as in Prometheus client libraries. The Python library would
also import OpenSSL, which costs an agent without TLS 6 MB of memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

from agent.model import Metric, Sample, counter, gauge

STAT, FILES = Path("/proc/self/stat"), Path("/proc/self/fd")

CPU_SECONDS = counter("process_cpu_seconds_total", "CPU time of the agent in seconds.", str(STAT))
STARTED = gauge(
    "process_start_time_seconds",
    "Time at which the agent started in seconds since the epoch.",
    str(STAT),
)
VIRTUAL = gauge("process_virtual_memory_bytes", "Address space of the agent in bytes.", str(STAT))
RESIDENT = gauge("process_resident_memory_bytes", "Memory of the agent in bytes.", str(STAT))
OPEN_FILES = gauge("process_open_fds", "Number of open files of the agent.", str(FILES))
MAX_FILES = gauge(
    "process_max_fds", "Number of files that the agent may open.", "getrlimit(RLIMIT_NOFILE)"
)


def process_samples() -> Iterator[Sample]:
    """Yield a sample for each metric; raises OSError if /proc is not mounted."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    stat = STAT.read_text().rpartition(")")[2].split()  # from the third field on
    booted = int(Path("/proc/stat").read_text().partition("\nbtime ")[2].split(maxsplit=1)[0])
    values: dict[Metric, float] = {
        CPU_SECONDS: (int(stat[11]) + int(stat[12])) / ticks,
        STARTED: booted + int(stat[19]) / ticks,
        VIRTUAL: int(stat[20]),
        RESIDENT: int(stat[21]) * page,
        OPEN_FILES: len(list(FILES.iterdir())),
        MAX_FILES: getrlimit(RLIMIT_NOFILE)[0],
    }
    for metric, value in values.items():
        yield Sample(metric, (), value)
