"""Recording rules of fleets for scrapes that are written as history: rules evaluate samples that
come, not those of the past."""

import re
from collections import defaultdict
from collections.abc import Iterator

from agent.faults.records import BUSY_DISK, GPU_LOST, NODE_SECONDS, PATH_SECONDS

SERIES = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
STATE, FULL = "dgx_gpu_state_seconds_total", "dgx_bandwidth_saturated_seconds_total"
BUSY, DEVICE = "dgx_disk_busy_seconds_total", re.compile(r'device="[^"]*"')
LIMIT = "dgx_bandwidth_limit_bytes_per_second"
LOST = re.compile(r'state="(starved|throttled|held|hung)"')
OF_ONE_GPU = re.compile(r'(gpu|uuid)="[^"]*",?')


class BoardRecords:
    """The records of one machine, scrape by scrape."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._before: dict[tuple[str, str], float] = {}

    def lines(self, scrape: str) -> Iterator[str]:
        """Lines of records without target and time, for a scrape as Prometheus gets it."""
        now = {(name, labels): float(value) for name, labels, value in SERIES.findall(scrape)}
        nodes: dict[str, float] = defaultdict(float)
        full = BUSY_DISK * self._every
        limited = {
            device
            for name, labels in now
            if name == LIMIT and 'path="disk"' in labels
            for device in DEVICE.findall(labels)
        }
        for (name, labels), value in now.items():
            grown = value - self._before.get((name, labels), 0.0)
            if name == STATE and grown > 0:
                nodes[OF_ONE_GPU.sub("", labels).rstrip(",")] += grown
            if grown > 0 and name == STATE and LOST.search(labels):
                yield f"{GPU_LOST}{{{labels}}} {grown!r}"
            if grown > 0 and name == FULL:
                yield f"{PATH_SECONDS}{{{labels}}} {grown!r}"
            known = (name, labels) in self._before  # disks have counted since long before
            if name == BUSY and known and grown >= full and labels not in limited:
                yield f'{PATH_SECONDS}{{{labels},path="disk",direction="busy"}} {grown!r}'
        for labels, grown in nodes.items():
            yield f"{NODE_SECONDS}{{{labels}}} {grown!r}"
        self._before = now
