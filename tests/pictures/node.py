"""A simulated node with a past: it lives through an hour at once, then goes on with the clock.

    python -m tests.pictures.node dgx-h100:starved-disk NAME SINCE PORT FILE

What Prometheus would scrape of it since SINCE (seconds since the epoch) is written to FILE, for
promtool. Once the node has caught up with the clock it says so by FILE.ready, and answers at PORT
too: what Prometheus itself scrapes goes on where the file has been read up to.
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Lock, Thread

from agent import simulator as simulation
from agent.config.settings import Settings
from agent.sources.workload import JobConfig
from exporters.prometheus import Exposition
from tests.support.answering import Silent
from tests.support.board_data import stamped
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import OPENMETRICS, watched

SCRAPE = 15
"""Seconds between two scrapes, as in deploy/compose.yaml."""


class Node:
    """An agent over a simulated machine, and what it exports."""

    def __init__(self, machine: str, since: float) -> None:
        clock = FrozenClock(since)
        made = simulation.SimulatedSystem(simulation.parse(machine), clock)
        self.bench = watched(made, clock, Settings(JobConfig(info=True)))
        self.exposition = Exposition(lambda: self.bench.latest, clock.monotonic, process=False)
        self.lock = Lock()

    @property
    def behind(self) -> int:
        """Whole seconds that it has yet to live."""
        return int(time.time() - self.bench.clock.time())

    def live(self, seconds: int) -> None:
        with self.lock:
            self.bench.run(seconds)

    def metrics(self) -> bytes:
        with self.lock:
            answer = self.exposition.page(OPENMETRICS).plain
            self.exposition.default.answered("Prometheus")
            return answer


def serve(node: Node, port: int) -> None:
    """Answer every request with the metrics of the moment."""

    class Metrics(Silent, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(node.metrics(), f"{OPENMETRICS}; charset=utf-8")

    Thread(target=HTTPServer(("127.0.0.1", port), Metrics).serve_forever, daemon=True).start()


def main(machine: str, instance: str, since: str, port: str, file: str) -> None:
    node = Node(machine, float(since))
    ready = Path(f"{file}.ready")
    with Path(file).open("w") as lines:
        lived = 0
        while True:
            if node.behind > 1:
                node.live(1)
                lived += 1
                if lived % SCRAPE == 0:
                    text, now = node.metrics().decode(), node.bench.clock.time()
                    lines.writelines(f"{line}\n" for line in stamped(text, instance, now))
                    lines.flush()
            elif ready.exists():
                time.sleep(0.2)
            else:
                serve(node, int(port))
                ready.touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
