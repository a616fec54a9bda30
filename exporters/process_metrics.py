"""The `process_*` metrics of the agent, as in Prometheus client libraries. The Python library would
also import OpenSSL, which requires 6 MB of memory in an agent without TLS."""

import os
from collections.abc import Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

from agent.metrics import declared_beside
from agent.model import Sample

_METRICS = declared_beside(__file__)


def process_samples() -> Iterator[Sample]:
    """Yield a sample for each metric. Raise OSError if /proc is not mounted."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # from the third field on
    booted = int(Path("/proc/stat").read_text().partition("\nbtime ")[2].split(maxsplit=1)[0])
    values = {
        "process_cpu_seconds_total": (int(stat[11]) + int(stat[12])) / ticks,
        "process_start_time_seconds": booted + int(stat[19]) / ticks,
        "process_virtual_memory_bytes": int(stat[20]),
        "process_resident_memory_bytes": int(stat[21]) * page,
        "process_open_fds": len([*Path("/proc/self/fd").iterdir()]),
        "process_max_fds": getrlimit(RLIMIT_NOFILE)[0],
    }
    for name, value in values.items():
        yield Sample(_METRICS[name], (), value)
