"""A soak of the service itself: its threads, its server, its reloads, seen from outside.

    python -m tests.benchmarks.soak_service --minutes 10 --speed 60

A simulated machine lives so much faster, scenario after scenario. It is scraped, looked at by live
pages that come and go, and asked to reload; its memory, files and threads are read from /proc.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.prometheus import free_port, wait_for

EVERY = 0.25  # s between two scrapes
RELOAD_EVERY = 80  # scrapes
PAGE_EVERY = 30
PAGE_FOR = 10
WARM_UP = 0.3
"""Share of the time after which it must not grow any more."""
MOST_GROWTH = 3_000_000
"""Bytes: no one collects garbage for the measure here."""
CONFIGS = (
    "",
    "[process]\nseries = 4\n[job]\ninfo = true\n",
    "[network]\nignore = 'e'\n",
    "x = 1\n",
)
"""In turn; the last is refused, and the one before stays."""


@dataclass(frozen=True, slots=True)
class Held:
    """Resources that a process holds."""

    rss: int
    files: int
    threads: int

    def __str__(self) -> str:
        return f"{self.rss / 1e6:8.3f} MB  {self.files:3} files  {self.threads:3} threads"


def held(pid: int) -> Held:
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    counts = (len(list((folder / name).iterdir())) for name in ("fd", "task"))
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), *counts)


@contextmanager
def service(port: int, config: Path, speed: float) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "agent", "run", "--simulate", "dgx-h100:tour"]
    command += ["--simulate-speed", f"{speed:g}", "--listen", f"127.0.0.1:{port}"]
    command += ["--config", str(config), "--log.level", "error"]
    with (
        config.with_suffix(".log").open("wb") as log,
        subprocess.Popen(command, stderr=log) as running,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port}/-/ready")
            yield running
        finally:
            running.terminate()


def ask(port: int, path: str) -> int:
    """Bytes of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}")
    request.add_header("Accept-Encoding", "gzip")
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60) as page:
        return len(page.read())
    return 0


def page(port: int) -> socket.socket:
    """An open live page that reads nothing."""
    opened = socket.create_connection(("127.0.0.1", port))
    opened.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: soak\r\n\r\n")
    return opened


def bother(port: int, pid: int, config: Path, number: int, pages: list[socket.socket]) -> None:
    """One scrape, and now and then something else."""
    ask(port, "metrics" if number % 4 else "api/v1/snapshot")
    if number % PAGE_EVERY == 0:
        pages.append(page(port))
    if number % PAGE_EVERY == PAGE_FOR and pages:
        pages.pop().close()
    if number % RELOAD_EVERY == 0:
        config.write_text(CONFIGS[number // RELOAD_EVERY % len(CONFIGS)])
        os.kill(pid, signal.SIGHUP)


def main() -> int:
    program = "python -m tests.benchmarks.soak_service"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--speed", type=float, default=60.0)
    given = parser.parse_args()
    port = free_port()
    pages: list[Any] = []
    measures: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text("")
        with service(port, config, given.speed) as running:
            start, number = time.monotonic(), 0
            while (passed := time.monotonic() - start) < 60 * given.minutes:
                number += 1
                bother(port, running.pid, config, number, pages)
                if passed >= 60 * given.minutes * (len(measures) + 1) / 20:
                    measures.append(held(running.pid))
                    print(f"{passed * given.speed:9.0f} s  {measures[-1]}", flush=True)
                time.sleep(EVERY)
    return report(measures)


def report(measures: list[Held]) -> int:
    """Compare the best of two spans: at any one moment a page may be open, or a scrape built."""
    first = measures[int(len(measures) * WARM_UP) : len(measures) // 2]
    last = measures[-len(first) :]
    before, after = ([min(m.rss for m in part) for part in (first, last)], [first, last])
    grown = before[1] - before[0]
    files, threads = ([max(getattr(m, w) for m in p) for p in after] for w in ("files", "threads"))
    print(f"grown by {grown / 1e3:.0f} kB; files {files}, threads {threads} at most")
    return int(grown > MOST_GROWTH or files[1] > files[0] or threads[1] > threads[0])


if __name__ == "__main__":
    sys.exit(main())
