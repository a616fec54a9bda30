"""Growth of an agent's cost with its machine: `python -m tests.benchmarks.growth`.

Each case is a process of its own that plays a simulated DGX H100 with a training job: more GPUs,
more processes of one job or of a job each, more threads of their trainers, more open pages. CPU is
the lower quartile of a tick, without and with the reads of the simulated hardware, which cost more
than real ones of NVML; memory is Rss. The order of growth is the slope between the two largest
cases on logarithmic scales: 1.0 is proportional.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from math import log
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from msgspec.structs import replace

from agent import simulator
from agent.bounds import MOST_MET
from agent.simulator.gpu import SimulatedGpuProcess
from agent.simulator.jobs import TRAINER
from exporters.live.page import Client
from exporters.prometheus import PLAIN, Exposition
from tests.benchmarks.tick import ROOT, machine
from tests.support.frozen_clock import FrozenClock

SYSTEM = "dgx-h100:training"
FEW, ALL = 2, 8
"""GPUs of the cases that grow in something else; processes and jobs take turns on all GPUs."""

CASES: dict[str, tuple[int, ...]] = {
    "gpus": (1, 8, 16, 72),
    "processes": (10, 1_000, 10_000),
    "jobs": (10, 300, 1_000),
    "threads": (100, 5_000),
    "pages": (1, 10),
}
WARM_UP, TICKS = 25, 20
SIZE = 1 << 20  # bytes that each further process holds on its GPU


class Cost(NamedTuple):
    """CPU milliseconds of a tick without the reads, and with them; MiB; series of `/metrics`."""

    tick: float
    with_reads: float
    memory: float
    series: int


def built(clock: FrozenClock, gpus: int) -> simulator.SimulatedSystem:
    """A DGX H100 of so many GPUs."""
    parsed = simulator.parse(SYSTEM)
    system = replace(parsed.system, buses=tuple(range(1, gpus + 1)))
    return simulator.SimulatedSystem(replace(parsed, system=system), clock)


def crowd(machine: simulator.SimulatedSystem, what: str, size: int) -> None:
    """Put further processes at rest on the GPUs, in turns."""
    processes, threads = (FEW, size) if what == "threads" else (size, 1)
    for number in range(processes):
        gpu = machine.gpus[number % len(machine.gpus)]
        parent = 1 if what == "jobs" else machine.jobs.teams[0].trainer.parent
        started = machine.jobs.start(machine.now, parent, "python3", TRAINER, ("x",) * threads)
        gpu.processes.append(SimulatedGpuProcess(started.pid, SIZE))


async def measure(what: str, size: int) -> Cost:
    agent, feed, clock, workers, system = machine(
        SYSTEM,
        lambda clock: built(clock, {"gpus": size, "processes": ALL, "jobs": ALL}.get(what, FEW)),
    )
    exposition = Exposition(lambda: agent.poller.latest, clock.monotonic, process=False)
    agent.poller.listeners.append(exposition.look)
    clients = [Client() for _ in range(size if what == "pages" else 0)]
    for client in clients:
        feed.clients.add(client)
    costs, with_reads = [], []
    warm_up = WARM_UP + size // MOST_MET * (what in ("processes", "jobs"))  # all were looked into
    for tick in range(warm_up + TICKS):
        if tick == warm_up:
            gc.collect()
            gc.freeze()  # as the agent does once it is built
        began = time.thread_time()
        if what in ("processes", "jobs", "threads") and tick == 1:  # the job has begun
            crowd(system, what, size)
        for worker in workers:
            worker.read()
        read = time.thread_time()
        await agent.poller.tick()
        for client in clients:
            feed.news(client)
        if tick >= warm_up:
            costs.append((time.thread_time() - read) * 1e3)
            with_reads.append((time.thread_time() - began) * 1e3)
        clock.advance(1.0)
        await asyncio.sleep(0)
    text = exposition.page(PLAIN).plain.decode().splitlines()
    return Cost(
        quantiles(costs, n=4)[0],
        quantiles(with_reads, n=4)[0],
        resident(),
        sum(not line.startswith("#") for line in text),
    )


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def rows(what: str, sizes: tuple[int, ...]) -> Iterator[str]:
    """A line for each size, and the order of growth between the two largest."""
    found = []
    for size in sizes:
        command = [sys.executable, "-OO", "-m", "tests.benchmarks.growth", "--case", what]
        done = subprocess.run(
            [*command, str(size)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found.append(Cost(*json.loads(done.stdout)))
        yield f"{f'{size} {what}':20}" + "".join(f"{value:14.1f}" for value in found[-1])
    ratio = log(sizes[-1] / sizes[-2])
    orders = (log(b / a) / ratio for a, b in zip(*found[-2:], strict=True))
    yield f"{'  order':20}" + "".join(f"{order:14.2f}" for order in orders)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs=2, help="one of them, as JSON")
    case = parser.parse_args().case
    if case:
        print(json.dumps(asyncio.run(measure(case[0], int(case[1])))))
        return
    titles = ("CPU ms", "with reads", "MiB", "series")
    print(f"{'':20}" + "".join(f"{title:>14}" for title in titles))
    for what, sizes in CASES.items():
        for row in rows(what, sizes):
            print(row, flush=True)


if __name__ == "__main__":
    main()
