"""Load: many clients scrape a real agent at once while it ticks. How late are ticks, how slow
scrapes? `python -m tests.benchmarks.load [seconds] [clients] [machine]` measures it; a machine is
one that is simulated, or `real`.

Ticks are timed by the agent's own watchdog notifications (sd_notify), one datagram a tick,
which costs HTTP nothing. Clients are one process of plain sockets that sends and counts bytes, and
parses nothing.
"""

import os
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.stack.running import Running, eventually

REQUEST = (
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n"
    b"Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n\r\n"
)
TICK = 1.0  # s
INTERVAL = 1.037
"""Seconds between two scrapes of one client: they meet ticks, one a second, at every phase."""
YOUNG = 15.0
"""Seconds in which an agent that starts still gets new series, which cost tens of milliseconds."""


@dataclass
class TickTimes:
    """Times (monotonic seconds) at which the agent's ticks were over."""

    channel: socket.socket
    at: list[float] = field(default_factory=list)

    def listen(self) -> None:
        """Until the channel is shut."""
        while message := self.channel.recv(4096):
            if b"WATCHDOG=1" in message:
                self.at.append(time.monotonic())

    def late(self, start: float, end: float) -> list[float]:
        """By how much (s) each tick came later after the one before than it should."""
        within = [t for t in self.at if start <= t <= end]
        return [b - a - TICK for a, b in pairwise(within)]


@dataclass
class Client:
    """One connection that scrapes again and again."""

    channel: socket.socket
    asked: float = 0.0
    heard: bytearray = field(default_factory=bytearray)
    wanted: int = 0  # bytes of the whole answer, once its head is known

    def ask(self) -> None:
        self.heard.clear()
        self.wanted = 0
        self.asked = time.monotonic()
        self.channel.sendall(REQUEST)

    def hear(self) -> bool:
        """Take what is there; True once the answer is whole."""
        chunk = self.channel.recv(1 << 18)
        assert chunk, f"the agent closed the connection: {bytes(self.heard)!r}"
        self.heard += chunk
        if not self.wanted and (end := self.heard.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.heard[:end])
            assert head.startswith(b"HTTP/1.1 200 "), head
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self.wanted = end + 4 + int(length)
        return bool(self.wanted) and len(self.heard) >= self.wanted


def scrape(port: int, clients: int, seconds: float, interval: float) -> list[float]:
    """Seconds that each scrape took. All clients ask at once, every `interval`; 0 for as fast as
    they are answered."""
    selector = selectors.DefaultSelector()
    everyone = [Client(socket.create_connection(("127.0.0.1", port))) for _ in range(clients)]
    for client in everyone:
        selector.register(client.channel, selectors.EVENT_READ, client)
    took: list[float] = []
    start = time.monotonic()
    due = start
    waiting = 0
    while (now := time.monotonic()) < start + seconds or waiting:
        if not waiting and now >= due:
            for client in everyone:
                client.ask()
            waiting, due = clients, max(due + interval, now)
        for key, _ in selector.select(max(0.0, due - now) if not waiting else 1.0):
            client = key.data
            if client.hear():
                took.append(time.monotonic() - client.asked)
                waiting -= 1
                if not interval and time.monotonic() < start + seconds:
                    client.ask()
                    waiting += 1
    for client in everyone:
        client.channel.close()
    return took


@contextmanager
def agent(machine: str) -> Iterator[tuple[int, TickTimes]]:
    """A real agent of a machine, ready, with its port and the times of its ticks."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "notify")
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        channel.bind(address)
        tick_times = TickTimes(channel)
        listening = threading.Thread(target=tick_times.listen)
        listening.start()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        run = ("agent", "run", "--listen", f"127.0.0.1:{port}")
        simulated = () if machine == "real" else ("--simulate", machine)
        try:
            with Running(
                *run, *simulated, NOTIFY_SOCKET=address, WATCHDOG_USEC="60000000"
            ) as running:
                running.line("event=nvml_connected")
                eventually(lambda: len(tick_times.at) >= 3, "the first ticks")
                yield port, tick_times
        finally:
            channel.shutdown(socket.SHUT_RDWR)
            listening.join()
            channel.close()


def share(values: list[float], part: float) -> float:
    """The value below which `part` of all values lie."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


@dataclass(frozen=True)
class Found:
    """Measurements, in seconds."""

    scrapes: list[float]
    late: list[float]

    def __str__(self) -> str:
        latest = max(self.late, default=float("nan"))
        late = f"ticks {len(self.late)}, latest {latest * 1e3:.1f} ms"
        if not self.scrapes:
            return late
        median, worst = statistics.median(self.scrapes), share(self.scrapes, 0.99)
        return (
            f"{late}; scrapes {len(self.scrapes)}, p50 {median * 1e3:.1f} ms, "
            f"p99 {worst * 1e3:.1f} ms, longest {max(self.scrapes) * 1e3:.1f} ms"
        )


def measure(
    port: int, tick_times: TickTimes, clients: int, seconds: float, interval: float = INTERVAL
) -> Found:
    """Scrape for so long; without clients only watch."""
    start = time.monotonic()
    took = scrape(port, clients, seconds, interval) if clients else []
    if not clients:
        time.sleep(seconds)
    return Found(took, tick_times.late(start, time.monotonic()))


def main() -> None:
    """Print what ticks and scrapes take: all at once of an agent that has just started; then with
    no one, all a little more seldom than it ticks, all without rest."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    clients = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    machine = sys.argv[3] if len(sys.argv) > 3 else "dgx-h100:training"
    print(f"{machine}, {os.cpu_count()} cores, {clients} clients, {seconds:g} s each")
    with agent(machine) as (port, tick_times):
        print(f"all, just started:   {measure(port, tick_times, clients, YOUNG)}")
        print(f"no scraper:          {measure(port, tick_times, 0, seconds)}")
        print(f"all, every 1.037 s:    {measure(port, tick_times, clients, seconds)}")
        print(f"all, without rest:   {measure(port, tick_times, clients, seconds, 0.0)}")


if __name__ == "__main__":
    main()
