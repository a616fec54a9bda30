"""Duration of the rules that look back over hours, with a day of history of so many nodes.

    python -m tests.benchmarks.day_of_rules NODES

Writes a day of the seconds by state of eight GPUs a node, a sample each 15 s, as blocks of a real
Prometheus (a node costs 1.5 s, and 100 MB of text for a while), and asks once for each rule of
the group of long records. What they cost grows with the nodes.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import yaml

from agent.config.settings import Settings
from agent.model import PAIRS
from alerts.build import rules
from tests.support.prometheus import Prometheus

DAY, EVERY = 86_400, 15
GROUP = "dgx-long-records"


def lines(nodes: int, end: int) -> Iterator[str]:
    """Seconds by state and cause of each GPU, as OpenMetrics."""
    random = Random(0)
    for node in range(nodes):
        for gpu in range(8):
            where = f'instance="n{node:04d}:9935",job="dgx",gpu="{gpu}",uuid="G{node}-{gpu}"'
            for state, cause in PAIRS:
                labels = f'{where},state="{state.value}",cause="{cause.value}"'
                name = f"dgx_gpu_state_seconds_total{{{labels}}}"
                share, value = random.random() ** 8, 0.0
                for at in range(end - DAY, end + 1, EVERY):
                    value += EVERY * share * random.random()
                    yield f"{name} {value:.3f} {at}\n"


def main(nodes: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place, end = Path(folder), int(time.time()) // EVERY * EVERY
        server = Prometheus(place, {}, [])
        with (place / "samples.txt").open("w") as file:
            number = 0
            for line in lines(int(nodes), end):
                number += file.write(line) > 0
            file.write("# EOF\n")
        print(f"{nodes} nodes: {number} samples", flush=True)
        server.backfill(place / "samples.txt")
        (place / "samples.txt").unlink()
        (group,) = yaml.safe_load(rules(Settings())[f"{GROUP}.yaml"])["groups"]
        with server:
            whole = 0.0
            for rule in group["rules"]:
                began = time.perf_counter()
                found = len(server.now(rule["expr"], end))
                took = time.perf_counter() - began
                whole += took
                print(f"{took:7.3f} s {found:6d} series  {rule['record']}")
        print(f"{whole:7.3f} s of the {group['interval']} after which they are due again")


if __name__ == "__main__":
    main(*sys.argv[1:])
