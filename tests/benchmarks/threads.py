"""CPU time of reading the threads of GPUs' processes: `python -m tests.benchmarks.threads`.

Eight processes of this machine stand for those of eight GPUs. Each has 150 threads, of which one
works, and 32 loader processes, then none; all but that thread sleep. Printed is the CPU time in
milliseconds that a second of reading takes, its median and its mean: threads and descendants are
searched for now and then, so the mean is above the median. The goals are 5 ms with loaders and
1.5 ms without.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean, median

from agent.hardware.files import RealFiles
from agent.jobs.process_times import ProcessTimes

GPUS, LOADERS, THREADS = 8, 32, 150
WARM_UP, SECONDS = 64, 60  # readings; threads of a new process are searched for more often
LAUNCHER = """
import subprocess, sys, threading, time
loaders, threads = map(int, sys.argv[1:])
below = [subprocess.Popen(["sleep", "1000"]) for _ in range(loaders)]
def work():
    while True:
        sum(range(2000))
        time.sleep(0.01)
for number in range(threads - 1):
    target = work if number == 0 else threading.Event().wait
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
for process in below:
    process.kill()
"""


@contextmanager
def launched(loaders: int) -> Iterator[list[int]]:
    """Pids of such processes, which end with the block."""
    command = [sys.executable, "-c", LAUNCHER, str(loaders), str(THREADS)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.extend(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(GPUS)
        )
        for process in started:
            assert process.stdout
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.communicate()


def costs(pids: list[int], seconds: int) -> Iterator[float]:
    """CPU milliseconds of each reading; its clock runs a second ahead each time."""
    times, foreign = ProcessTimes(RealFiles()), set(pids)
    gpus = [(str(number), f"GPU-{number}") for number in range(len(pids))]
    for at in range(WARM_UP + seconds):
        began = time.thread_time()
        for gpu, pid in zip(gpus, pids, strict=True):
            assert times.read(gpu, (pid,), foreign, float(at)) is not None
        times.forget(gpus, float(at))
        if at >= WARM_UP:
            yield (time.thread_time() - began) * 1e3


def main() -> None:
    """Print the cost with loaders and without."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=SECONDS)
    seconds = parser.parse_args().seconds
    for loaders in (LOADERS, 0):
        with launched(loaders) as pids:
            found = list(costs(pids, seconds))
        print(
            f"{GPUS} GPUs, {loaders} loaders and {THREADS} threads a process: median "
            f"{median(found):.2f}, mean {mean(found):.2f}, most {max(found):.2f} ms a second"
        )


if __name__ == "__main__":
    main()
