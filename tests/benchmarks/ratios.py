"""Ratios of times that hold on any machine: `python -m tests.benchmarks.ratios [NAME ...]`.

Both parts of a ratio run in turns in one run, and the least of each counts.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from random import Random
from statistics import median

from agent.config.settings import Configuration, Settings
from agent.hardware.host import real_host
from agent.jobs.allocation import Allocations
from agent.jobs.pulse import Pulse
from agent.polling.gpu_state import GpuProcesses
from agent.polling.reads import ReadOutput
from agent.sources import workload
from agent.sources.context import HostOptions
from tests.support.frozen_clock import FrozenClock
from tests.support.power_signals import REST, WORK, sampled

THREADS = """
import threading
threading.stack_size(65536)
end = threading.Event()
for _ in range({}):
    threading.Thread(target=end.wait, daemon=True).start()
print(flush=True)
end.wait()
"""


def least(*parts: Callable[[], object]) -> list[float]:
    """The least seconds of CPU time that each part takes."""
    found = [float("inf")] * len(parts)
    for _ in range(5):
        for place, part in enumerate(parts):
            before = time.process_time()
            part()
            found[place] = min(found[place], time.process_time() - before)
    return found


def pulse() -> Iterator[str]:
    """CPU of the pulse of a job with steps, and of one without a rhythm, whose power is examined on
    all scales."""
    chance = Random(1)
    steps = sampled(cycle([(0.2, WORK), (0.03, REST)]), 300.0)
    irregular = sampled(((chance.expovariate(4), w) for w in cycle([WORK, REST])), 300.0)
    short, long = least(lambda: Pulse().feed(steps), lambda: Pulse().feed(irregular))
    yield f"pulse of steps over an irregular one: {short / long:.2f}"


def ticks(command: list[str], processes: int, seconds: int) -> list[float]:
    """CPU milliseconds of each read of so many processes on eight GPUs."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        children.extend(subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes))
        for child in children if command[0] == sys.executable else ():
            assert child.stdout
            child.stdout.readline()
        on_gpus, clock = GpuProcesses(), FrozenClock()
        for gpu in range(8):
            pids = (child.pid for child in children[gpu::8])
            on_gpus.by_gpu[str(gpu), f"GPU-{gpu}"] = tuple(pids)
        options = HostOptions(Configuration(Settings()), every=lambda: 1.0)
        (read,) = workload.reads(real_host(0.0), clock, options, on_gpus, Allocations())
        costs = []
        for _ in range(seconds):
            out, began = ReadOutput(clock.monotonic()), time.thread_time()
            read.run(out)
            costs.append((time.thread_time() - began) * 1e3)
            clock.advance(1.0)
        return costs
    finally:
        for child in children:
            child.kill()
            child.wait()


def threads() -> Iterator[str]:
    """Reads of eight processes of 5,000 threads, once they were met."""
    costs = ticks([sys.executable, "-S", "-c", THREADS.format(5_000)], 8, 60)[5:]
    worst, middle = max(costs), median(costs)
    yield f"8 x 5,000 threads, worst read over median: {worst / middle:.2f} ({middle:.1f} ms)"


def processes() -> Iterator[str]:
    """Reads of 1,000 processes at rest and of 100, once all were looked into."""
    many, few = (ticks(["sleep", "999"], n, 150)[-20:] for n in (1_000, 100))
    ratio = median(many) / median(few)
    yield f"1,000 processes over 100: {ratio:.1f} ({median(many):.1f} ms, worst {max(many):.1f})"


ALL = {one.__name__: one for one in (pulse, threads, processes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(ALL))
    for name in parser.parse_args().names or ALL:
        for line in ALL[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
