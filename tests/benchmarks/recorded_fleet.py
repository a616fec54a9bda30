"""Recorded scrapes of simulated nodes, served as hundreds of nodes: load for the engines.

    python -m tests.benchmarks.recorded_fleet record TAPE [SYSTEM:SCENARIO ...]
    python -m tests.benchmarks.recorded_fleet small TAPE [SYSTEM:SCENARIO ...]
    python -m tests.benchmarks.recorded_fleet serve TAPE PORT

`record` keeps the scrapes of some minutes, `small` those of the small set without bytes of single
links. `serve` answers for node n at 127.124.X.Y, with UUIDs
of its own; what grows goes on growing, from a value of its own and a place of its own in the tape;
counters that stood still do so here (an XID that never came comes nowhere). No agent runs: what the
engines pay is measured, not what the nodes do.
"""

import asyncio
import json
import pickle
import re
import sys
import time
from dataclasses import dataclass
from gzip import compress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import cast

from agent.config.settings import Settings
from agent.sources.context import NvlinkConfig
from agent.stack.inventory import FleetFile, FleetNode, targets
from exporters.prometheus import Exposition
from exporters.settings import MetricsConfig
from tests.support.machines import TEXT, simulated

SPECS = (
    "dgx-1-v100:training",
    "dgx-1-v100:idle",
    "dgx-1-v100:starved-disk",
    "dgx-1-v100:training",
)
PAGES = 12
EVERY = 15
"""Seconds between two pages, and two scrapes."""
SETTLED = 75
"""Ticks until what is read each minute has been read twice."""
RACK = 4

LINE = re.compile(r"^(\w+(?:\{.*\})?) (\S+)$", re.MULTILINE)
UUID = 'uuid="GPU-'
MARK, STAMP = "\0", "\1"
"""Placeholders for the node, and for the time of its last tick."""
TICK = "dgx_agent_last_tick_timestamp_seconds"


@dataclass(frozen=True)
class Recording:
    """Scrapes of one node: what stands between growing values, page by page, and these values."""

    texts: list[list[str]]
    values: list[list[float]]

    def body(self, seed: int, at: float) -> bytes:
        """The scrape of a node at a time."""
        phase = Random(seed).randrange(PAGES)
        loops, page = divmod(int(at / EVERY) % 100_000 + phase, PAGES)
        first, last = self.values[0], self.values[-1]
        grown = loops * PAGES / (PAGES - 1)
        base = float(seed * 1000)
        now = self.values[page]
        parts: list[str] = [""] * (2 * len(now) + 1)
        parts[::2] = self.texts[page]
        parts[1::2] = [
            repr(round(base + v + grown * (b - a), 3))
            for v, a, b in zip(now, first, last, strict=True)
        ]
        text = "".join(parts)
        return text.replace(MARK, f"{seed:06x}").replace(STAMP, repr(at)).encode()


def record(spec: str, *, small: bool) -> Recording:
    """Play a simulated node and keep its scrapes."""
    config = MetricsConfig(set="small" if small else "full")
    bench = simulated(spec, Settings(NvlinkConfig(per_link=not small))).run(SETTLED)
    exposition = Exposition(
        lambda: bench.agent.poller.latest,
        bench.clock.monotonic,
        process=False,
        selected=lambda: config,
    )
    pages = []
    for _ in range(PAGES):
        bench.run(EVERY)
        pages.append(exposition.render(TEXT)[0].decode())
        print(f"{spec}: page {len(pages)} of {PAGES}", flush=True)
    rows = [dict(LINE.findall(page)) for page in pages]
    common = set(rows[0]).intersection(*rows)
    counters = {name for name in common if name.partition("{")[0].endswith("_total")}
    growing = {
        name
        for name in counters
        if all(float(a[name]) <= float(b[name]) for a, b in pairwise(rows))
        and rows[0][name] != rows[-1][name]
    }
    texts, values = [], []
    for page, row in zip(pages, rows, strict=True):
        pieces, numbers = [""], []
        for line in page.splitlines():
            name = line.rpartition(" ")[0]
            if line[0] == "#":
                pieces[-1] += f"{line}\n"
            elif name in growing:
                pieces[-1] += f"{own(name)} "
                numbers.append(float(row[name]))
                pieces.append("\n")
            elif name in common:
                value = STAMP if name == TICK else row[name]
                pieces[-1] += f"{own(name)} {value}\n"
        texts.append(pieces)
        values.append(numbers)
    return Recording(texts, values)


def own(name: str) -> str:
    """A series, with a mark in its UUID."""
    return name.replace(UUID, UUID + MARK)


def address(number: int) -> str:
    """All of 127.0.0.0/8 is this machine."""
    return f"127.124.{number // 250}.{number % 250 + 1}"


def listed(count: int, port: int) -> str:
    """The targets, as file_sd takes them."""
    fleet = FleetFile(cluster="recorded", port=port)
    nodes = [FleetNode(f"dgx{n:04d}", address(n), f"r{n // RACK + 1:03d}") for n in range(count)]
    return json.dumps(targets(fleet, nodes))


class Answer(asyncio.Protocol):
    """As much HTTP as a scraper needs: GET, one answer after the other."""

    def __init__(self, recordings: list[Recording]) -> None:
        self._recordings = recordings
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host = transport.get_extra_info("sockname")[0]
        high, low = map(int, host.split(".")[2:])
        self._number = high * 250 + low - 1

    def data_received(self, data: bytes) -> None:
        self._read += data
        while b"\r\n\r\n" in self._read:
            head, _, self._read = self._read.partition(b"\r\n\r\n")
            recording = self._recordings[self._number % len(self._recordings)]
            body = recording.body(self._number, time.time())
            coding = b""
            if b"gzip" in head:
                body, coding = compress(body, 1), b"Content-Encoding: gzip\r\n"
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
                + coding
                + b"Content-Length: %d\r\n\r\n" % len(body)
                + body
            )


async def serve(recordings: list[Recording], port: int) -> None:
    """Until the process ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answer(recordings), "0.0.0.0", port, backlog=1024)
    print("serving", flush=True)
    await server.serve_forever()


def main(what: str, tape: str, *words: str) -> None:
    """Record or serve."""
    if what != "serve":
        small = what == "small"
        made = {spec: record(spec, small=small) for spec in dict.fromkeys(words or SPECS)}
        Path(tape).write_bytes(pickle.dumps([made[spec] for spec in words or SPECS]))
        return
    asyncio.run(serve(pickle.loads(Path(tape).read_bytes()), int(words[0])))


if __name__ == "__main__":
    main(*sys.argv[1:])
