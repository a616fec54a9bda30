"""Memory of an agent in each way in which it is started: `python -m tests.benchmarks.memory [OTHER
CHECKOUT]`.

A way is the environment that it gives the agent. All run side by side for two minutes, watch a
simulated DGX H100 with a training job, and are scraped every five seconds. Their bytecode is
compiled before, except where it may not be written.
"""

import argparse
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.tick import ROOT
from tests.support.prometheus import free_port

MACHINE = "dgx-h100:training"
SECONDS = 120.0
WAYS: Mapping[str, Mapping[str, str]] = {
    "clone, deploy/start, container": {},
    "service of 0.2.0": {"PYTHONOPTIMIZE": "2", "MALLOC_ARENA_MAX": "1"},
    "without bytecode": {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": os.devnull},
}
SHOWN = ("Rss", "Pss", "Private_Dirty")
IMPORTS = "import agent.cli.run, agent.simulator, pynvml, exporters.prometheus"


@contextmanager
def running(
    checkout: Path, environment: Mapping[str, str], machine: str = MACHINE
) -> Iterator[tuple[int, int]]:
    """An agent of a checkout: its process and port."""
    port = free_port()
    command = [sys.executable, "-m", "agent", "run", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        [*command, "--simulate", machine],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), **environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def compiled(checkout: Path, cache: Path) -> Mapping[str, str]:
    """The environment of an agent whose bytecode is compiled, with both levels of optimisation."""
    environment = {"PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    own = {**os.environ, "PYTHONPATH": str(checkout), **environment}
    for flags in ((), ("-OO",)):
        subprocess.run([sys.executable, *flags, "-c", IMPORTS], cwd=checkout, env=own, check=True)
    return environment


def memory(pid: int) -> list[float]:
    """MiB of SHOWN."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: int(rest.split()[0]) for name, _, rest in (one.partition(":") for one in lines)}
    return [found[name] / 1024 for name in SHOWN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="another checkout to compare with")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args()
    checkouts = [path.resolve() for path in (ROOT, arguments.other) if path is not None]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        agents = {}
        for number, checkout in enumerate(checkouts):
            shared = compiled(checkout, Path(folder, str(number)))
            for way, environment in WAYS.items():
                agent = running(checkout, {**shared, **environment})
                agents[f"{checkout.name}, {way}"] = stack.enter_context(agent)
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            for _, port in agents.values():
                with suppress(OSError):  # not ready yet
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
            time.sleep(5.0)
        print(f"{'MiB':50}", *map("{:>14}".format, SHOWN))
        for name, (pid, _) in agents.items():
            print(f"{name:50}", *map("{:14.1f}".format, memory(pid)))


if __name__ == "__main__":
    main()
