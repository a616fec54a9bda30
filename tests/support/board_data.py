"""Data for boards: live agents of four systems, and simulated minutes of many scenarios."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support.board_records import BoardRecords
from tests.support.boards import queries
from tests.support.machines import simulated
from tests.support.patience import PATIENCE
from tests.support.prometheus import free_port

EVERY = 10
"""Seconds of a simulated machine between two scrapes."""

SECONDS = 30
LONGER = {"held": 100, "ecc": 100, "nvlink-errors": 100}
"""Duration of each scenario: longer than a minute, for values that take as long to be known, or to
be read."""

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
    return LONGER.get(machine.partition(":")[2], SECONDS)


def played(machine: str) -> tuple[float, list[str]]:
    """A simulated machine over its minutes: when they end, and its samples with their times."""
    bench = simulated(machine)
    lines: list[str] = []
    records = BoardRecords(EVERY)
    for _ in range(seconds_of(machine) // EVERY):
        bench.run(EVERY)
        scrape = bench.scrape()
        made = "\n".join(records.lines(scrape))
        lines += _stamped(f"{scrape}\n{made}", machine, bench.clock.time())
    return bench.clock.time(), lines


def _stamped(scrape: str, machine: str, at: float) -> Iterator[str]:
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
