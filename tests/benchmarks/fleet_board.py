"""Duration of each query of the fleet's board over a day of so many nodes, in a real Prometheus.

    python -m tests.benchmarks.fleet_board PROMETHEUS_URL NODES HOURS

Takes the series that the board asks for as a running `up --fleet` has them now (the address of its
Prometheus), as many nodes of them as wanted, writes HOURS of each as blocks (records each five
minutes, what rules record each minute as often, the rest at the end only), and asks a Prometheus
over them. Prints seconds and series of each query, the slowest first.
"""

import json
import re
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.faults.values import seconds
from tests.support.boards import EVERYTHING, Asked, queries, substituted
from tests.support.prometheus import Prometheus

NAMES = re.compile(r"\b[a-z_]+:dgx_[\w:]+|(?<!:)\bdgx_\w+|\b(?:up|ALERTS)\b")
FIVE, ONE = 300, 60
END = 120
"""Seconds of the end in which what is asked for now has samples."""

Metric = dict[str, str]


def board() -> list[Asked]:
    return [asked for asked in queries() if asked.board == "dgx-fleet"]


def found(address: str, name: str) -> list[tuple[Metric, float]]:
    """The series of a name as they are, or were within the last hour."""
    query = urllib.parse.urlencode({"query": f"last_over_time({{__name__='{name}'}}[1h])"})
    with urllib.request.urlopen(f"{address}/api/v1/query?{query}") as page:
        result: list[dict[str, Any]] = json.load(page)["data"]["result"]
    return [(one["metric"], float(one["value"][1])) for one in result]


def many(series: list[tuple[Metric, float]], nodes: int) -> Iterator[tuple[Metric, float]]:
    """The same of so many nodes: those that there are, over and over, under other names."""
    known = sorted({metric["instance"] for metric, _ in series if "instance" in metric})
    if not known:
        yield from series
        return
    of_node: dict[str, list[tuple[Metric, float]]] = {}
    for metric, value in series:
        of_node.setdefault(metric.get("instance", ""), []).append((metric, value))
    for number in range(nodes):
        for metric, value in of_node[known[number % len(known)]]:
            labels = {"instance": f"n{number:04d}:9935", "rack": f"r{number // 4:03d}"}
            yield {**metric, **labels, "node": f"n{number:04d}"}, value


def lines(name: str, metric: Metric, value: float, end: float, hours: float) -> Iterator[str]:
    every = FIVE if name.endswith("increase5m") else ONE if ":" in name else 15
    begin = end - (hours * 3600 if ":" in name else END)
    inside = ",".join(f"{k}={json.dumps(v)}" for k, v in metric.items() if k != "__name__")
    at = begin
    while at <= end:
        yield f"{name}{{{inside}}} {value!r} {at:.0f}\n"
        at += every


def write(address: str, nodes: int, hours: float, path: Path) -> tuple[int, int, float]:
    """All samples as OpenMetrics; how many series and samples there are, and when they end."""
    names = sorted({n for asked in board() for n in NAMES.findall(asked.target["expr"])})
    end, number, samples = float(int(time.time())), 0, 0
    with path.open("w") as file:
        for name in names:
            for metric, value in many(found(address, name), nodes):
                number += 1
                for line in lines(name, metric, value, end, hours):
                    samples += 1
                    file.write(line)
        file.write("# EOF\n")
    return number, samples, end


def seconds_of(server: Prometheus, asked: Asked, end: float, hours: float) -> tuple[float, int]:
    """The best of three, and the series of the answer."""
    windows = {"__rate_interval": "1m", "__range": f"{hours * 3600:.0f}s"}
    expr = substituted(asked.target["expr"], **EVERYTHING, **windows)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        if asked.target["instant"]:
            number = len(server.now(expr, end))
        else:
            step = max(hours * 3.6, seconds(asked.panel.get("interval", "15s")))
            number = len(server.over(expr, end - hours * 3600, end, step))
        took.append(time.perf_counter() - began)
    return min(took), number


def main(address: str, nodes: str, hours: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        server = Prometheus(place, {}, [])
        series, samples, end = write(address, int(nodes), float(hours), place / "samples.txt")
        print(f"{nodes} nodes, {hours} h: {series} series, {samples} samples", flush=True)
        server.backfill(place / "samples.txt")
        (place / "samples.txt").unlink()
        with server:
            rows = [(*seconds_of(server, asked, end, float(hours)), asked) for asked in board()]
    for took, number, asked in sorted(rows, key=lambda row: -row[0]):
        print(f"{took:7.3f} s {number:6d} series  {asked}")


if __name__ == "__main__":
    main(*sys.argv[1:])
