"""One GPU whose driver calls take 2 or 45 s, alone and beside six busy processes, on two cores:
`python -m tests.benchmarks.slow_driver`

An agent watches a simulated machine through a library that delays each call of one GPU. The slow
GPU must be named within two minutes, and no other GPU at all. Takes ten minutes. With `--library
slow_ioctl.so` it watches this machine:

    gcc -O2 -shared -fPIC -o slow_ioctl.so tests/hardware/slow_ioctl.c -ldl -lpthread
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agent import __main__ as command
from agent.cli import assembly
from agent.clock import SystemClock
from agent.simulator import SimulatedSystem, parse
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.nvml import SimulatedNvml

ILL, PORT = 1, 29751
DELAYS, BUSY, CORES = (2, 45), (0, 6), {0, 1}
WARM_UP, SPAN, READY = 20.0, 120.0, 90.0  # s
TOOK, WAITED = "dgx_gpu_read_seconds", "dgx_agent_processor_wait_seconds_total"


class SlowNvml(SimulatedNvml):
    """A library in front of the driver: while a file is there, each call of one GPU sleeps for as
    many seconds as it says."""

    def __init__(self, token: Path) -> None:
        super().__init__(SimulatedSystem(parse("dgx-h100:training"), SystemClock()))
        self.token = token
        self.machine.gpus[ILL].slow = 1.0  # asks `_wait`

    def _wait(self, gpu: SimulatedGpu) -> None:
        if self.token.exists():
            time.sleep(float(self.token.read_text()))


@contextmanager
def running(*words: str, **environment: str) -> Iterator[None]:
    """A program of Python that is ended afterwards."""
    child = subprocess.Popen([sys.executable, *words], env={**os.environ, **environment})
    try:
        yield
    finally:
        child.kill()
        child.wait()


def fetched(path: str) -> bytes:
    """The agent's answer; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=10) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def named() -> set[str]:
    """The GPUs that do not answer, by the agent's own words, and what else it says of its reads."""
    snapshot: dict[str, Any] = json.loads(fetched("/api/v1/snapshot") or "{}")
    gpus = {f"GPU {g['gpu']}" for g in snapshot.get("gpus", []) if "not_answering" in str(g)}
    down = {one["source"] for one in snapshot.get("sources", []) if not one["up"]}
    return gpus | down


def series(metric: str) -> dict[str, float]:
    """The samples of one metric by their labels."""
    lines = fetched("/metrics").decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith(metric))
    return {name: float(value) for name, _, value in pairs}


def trial(delay: int, busy: int, library: Path | None) -> bool:
    """Print one line; False where the GPU was not named alone."""
    with ExitStack() as stack:
        token = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "slow"
        serve = ["run", "--listen", f"127.0.0.1:{PORT}"]
        slowed = {"SLOW_GPU": str(ILL), "SLOW_EACH": str(token), "SLOW_SECONDS": str(delay)}
        if library is not None:
            agent = running("-m", "agent", *serve, LD_PRELOAD=str(library), **slowed)
        else:
            agent = running("-m", __spec__.name, "--serve", str(token), *serve)
        stack.enter_context(agent)
        until = time.monotonic() + READY
        while not fetched("/-/ready") and time.monotonic() < until:
            time.sleep(0.5)
        for _ in range(busy):
            stack.enter_context(running("-c", "while True: pass"))
        time.sleep(WARM_UP)
        before = named()
        waited, began = sum(series(WAITED).values()), time.monotonic()
        token.write_text(str(delay))
        first, others = None, before
        while (passed := time.monotonic() - began) < SPAN:
            now = named()
            if f"GPU {ILL}" in now and first is None:
                first = passed
            others |= now - {f"GPU {ILL}"}
            time.sleep(0.5)
        longest = max((v for k, v in series(TOOK).items() if f'gpu="{ILL}"' not in k), default=-1.0)
        waits = (sum(series(WAITED).values()) - waited) / SPAN
    after = "not named" if first is None else f"named after {first:.1f} s"
    print(
        f"{delay} s a call, {busy} busy: {after}; others: {', '.join(sorted(others)) or 'none'}; "
        f"longest read of another {longest:.3f} s; waits {waits:.2f} s/s",
        flush=True,
    )
    return first is not None and not others


def main() -> int:
    """Play all, or serve as the agent of one trial; 1 where a trial failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--library", type=Path, help="slow_ioctl.so, for a real driver")
    arguments, rest = parser.parse_known_args()
    if arguments.serve:
        library = SlowNvml(arguments.serve)
        vars(assembly)["real_library"] = lambda: library
        sys.argv[1:] = rest
        command.main()
        return 0
    os.sched_setaffinity(0, CORES)
    held = [trial(delay, busy, arguments.library) for busy in BUSY for delay in DELAYS]
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
