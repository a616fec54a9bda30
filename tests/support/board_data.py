"""Data for boards: live agents of four systems, and simulated minutes of many scenarios."""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from agent.faults.records import BUSY_DISK
from tests.support.boards import queries
from tests.support.machines import simulated
from tests.support.patience import PATIENCE
from tests.support.prometheus import free_port

SERIES = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
STATE, FULL = "dgx_gpu_state_seconds_total", "dgx_bandwidth_saturated_seconds_total"
PATH = "path:dgx_bandwidth_saturated_seconds:increase5m"
BUSY, DEVICE = "dgx_disk_busy_seconds_total", re.compile(r'device="[^"]*"')
LIMIT = "dgx_bandwidth_limit_bytes_per_second"
LOST = re.compile(r'state="(starved|throttled|held|hung)"')


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
                nodes[re.sub(r'(gpu|uuid)="[^"]*",?', "", labels).rstrip(",")] += grown
            if grown > 0 and name == STATE and LOST.search(labels):
                yield f"gpu_state_cause:dgx_gpu_lost_seconds:increase5m{{{labels}}} {grown!r}"
            if grown > 0 and name == FULL:
                yield f"{PATH}{{{labels}}} {grown!r}"
            known = (name, labels) in self._before  # disks have counted since long before
            if name == BUSY and known and grown >= full and labels not in limited:
                yield f'{PATH}{{{labels},path="disk",direction="busy"}} {grown!r}'
        for labels, grown in nodes.items():
            yield f"node_state_cause:dgx_gpu_state_seconds:increase5m{{{labels}}} {grown!r}"
        self._before = now


EVERY = 10
"""Seconds of a simulated machine between two scrapes."""

SECONDS = 30
LONGER = {"held": 100, "ecc": 100, "nvlink-errors": 100, "dgx-h100:starved-disk": 60}
"""Duration of some scenarios: as long as their values take to be known, or to be read; a disk that
no sheet bounds counts as busy from its second scrape on."""

EVERYTHING = "[process]\nseries = 4\n[job]\ninfo = true\n[dcgm]\nenabled = true\n"
"""The configuration of live agents: with what is off by default."""

NAME = re.compile(r"^([\w:]+)(\{)?")
JOB = 'job="dgx-telemetry"'


@cache
def shown() -> frozenset[str]:
    """Metrics that some board asks for: the rest need not be stored."""
    asked = " ".join(q.target["expr"] for q in queries())
    return frozenset(re.findall(r"\b[a-z_]+:[\w:]+|\bdgx_\w+", asked))


def seconds_of(machine: str) -> int:
    """For how long a machine (SYSTEM:SCENARIO) is simulated."""
    return LONGER.get(machine) or LONGER.get(machine.partition(":")[2], SECONDS)


def played(machine: str) -> tuple[float, list[str]]:
    """A simulated machine over its minutes, of one with NVSwitches three GPUs, but where one of
    eight loses little: when they end, and its samples with their times."""
    bench = simulated(machine, gpus=8 if machine.endswith(("-pcie", "-disk")) else 3)
    lines: list[str] = []
    records = BoardRecords(EVERY)
    for _ in range(seconds_of(machine) // EVERY):
        bench.run(EVERY)
        scrape = bench.scrape()
        made = "\n".join(records.lines(scrape))
        lines += stamped(f"{scrape}\n{made}", machine, bench.clock.time())
    return bench.clock.time(), lines


def stamped(scrape: str, machine: str, at: float) -> Iterator[str]:
    """Return the samples of a scrape that the boards need, with Prometheus' additions: its labels,
    the time, and `up`."""
    target = f'{JOB},instance="{machine}"'
    yield f"up{{{target}}} 1 {at:.3f}"
    for line in scrape.splitlines():
        match = NAME.match(line)
        if match and match[1] in shown():
            rest = line[match.end() :]
            labels = f"{{{target},{rest}" if match[2] else f"{{{target}}}{rest}"
            yield f"{match[1]}{labels} {at:.3f}"


def openmetrics(machines: Sequence[str], path: Path) -> Mapping[str, float]:
    """All scenarios in one file for promtool; and when each of them ended."""
    ends = {}
    with ProcessPoolExecutor(2) as pool, path.open("w") as file:
        for machine, (end, lines) in zip(machines, pool.map(played, machines), strict=True):
            ends[machine] = end
            file.writelines(f"{line}\n" for line in lines)
        file.write("# EOF\n")
    return ends


@contextmanager
def agents(machines: Mapping[str, str], folder: Path) -> Iterator[Mapping[str, str]]:
    """Real agents over simulated machines (SYSTEM:SCENARIO by name): their addresses by name."""
    config = folder / "config.toml"
    config.write_text(EVERYTHING)
    addresses = {name: f"127.0.0.1:{free_port()}" for name in machines}
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "agent", "run"),
                *("--simulate", machine, "--listen", addresses[name], "--config", str(config)),
            ],
            stderr=subprocess.DEVNULL,
        )
        for name, machine in machines.items()
    ]
    try:
        yield addresses
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(PATIENCE)
