"""Programs that watch GPUs, as processes: started, scraped, and what they cost."""

import atexit
import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.repository import ROOT

SCRAPE = 15.0
"""Seconds between two scrapes."""

SILENT_START = 2.0
ERRORS = 800  # characters of what a program complained of that are shown
MIB = 1 << 20
PORT, NVITOP_PORT, NODE_PORT = 19935, 19936, 19937
AGENT, BARE, NVITOP = "agent", "bare loop", "nvitop-exporter"
DMON, NODE = "nvidia-smi dmon", "node_exporter"


def cpu_seconds(pid: int) -> float:
    """User and system CPU of a process, all threads, those that ended as well."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of the process: nanoseconds
    except OSError:
        return _cpu_ticks(pid) / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(pid: int) -> int:
    after_name = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(after_name[11]) + int(after_name[12])


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no VmRSS of {pid}")


@cache
def environment() -> dict[str, str]:
    """Bytecode is at hand, as where a program is installed: to compile NVML's bindings again takes
    13 MiB that are never given back."""
    cached = tempfile.mkdtemp(prefix="bytecode-")
    atexit.register(shutil.rmtree, cached, ignore_errors=True)
    found = {**os.environ, "PYTHONPYCACHEPREFIX": cached}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    for words in (("-OO", "-c", "import agent.cli.run, pynvml"), ("-c", "import pynvml")):
        subprocess.run([sys.executable, *words], cwd=ROOT, env=found, check=True)
    return found


@dataclass(frozen=True, slots=True)
class Program:
    """One that watches GPUs, and how it is asked."""

    name: str
    command: tuple[str, ...]
    port: int = 0  # 0: it is not asked
    ready: str = "/metrics"

    def fetch(self, path: str = "/metrics") -> bytes:
        """Return the answer, unpacked."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            headers={
                "Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
                "Accept-Encoding": "gzip",
            },
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            body = bytes(answer.read())
            return gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body

    @contextmanager
    def running(self) -> Iterator[int]:
        """Its process's id, once it answers; gone afterwards. Raises RuntimeError."""
        with tempfile.TemporaryFile() as errors:
            out = subprocess.DEVNULL
            process = subprocess.Popen(
                self.command, cwd=ROOT, stdout=out, stderr=errors, env=environment()
            )
            try:
                if not self._is_ready(process):
                    errors.seek(0)
                    said = errors.read().decode(errors="replace")[-ERRORS:]
                    raise RuntimeError(f"{self.name} did not get ready: {said}")
                yield process.pid
            finally:
                _end(process)

    def _is_ready(self, process: subprocess.Popen[bytes], timeout: float = 60.0) -> bool:
        end = time.monotonic() + timeout
        if not self.port:  # it says nothing: it has loaded NVML by then
            time.sleep(SILENT_START)
            return process.poll() is None
        while process.poll() is None and time.monotonic() < end:
            try:
                self.fetch(self.ready)
            except OSError:
                time.sleep(0.1)
            else:
                return True
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def agent(*flags: str) -> Program:
    """As its service runs it, without docstrings."""
    listen = ("--listen", f"127.0.0.1:{PORT}")
    command = (sys.executable, "-OO", "-m", "agent", "run", *listen, *flags)
    return Program(AGENT, command, PORT, "/-/ready")


def bare_loop(state: str) -> Program:
    """The same calls, and nothing around them."""
    return Program(BARE, (sys.executable, "-m", "tests.hardware.bare_loop", state))


def others() -> list[list[Program]]:
    """Those of other people that are here, in groups that may run at once: of each group one at
    most asks the driver. Says what is not here."""
    known = {NVITOP: _nvitop(), NODE: _node_exporter(), DMON: _dmon()}
    for name, program in known.items():
        if program is None:
            print(f"{name} is not here: left out", flush=True)
    groups = ([known[name] for name in names] for names in ((NVITOP, NODE), (DMON,)))
    return [found for group in groups if (found := [one for one in group if one])]


def _nvitop() -> Program | None:
    if not importlib.util.find_spec("nvitop_exporter"):
        return None
    command = (sys.executable, "-m", "nvitop_exporter", "--port", str(NVITOP_PORT))
    return Program(NVITOP, command, NVITOP_PORT)


def _node_exporter() -> Program | None:
    path = shutil.which("node_exporter") or shutil.which("prometheus-node-exporter")
    listen = f"--web.listen-address=127.0.0.1:{NODE_PORT}"
    return Program(NODE, (path, listen, "--log.level=error"), NODE_PORT) if path else None


def _dmon() -> Program | None:
    path = shutil.which("nvidia-smi")
    return Program(DMON, (path, "dmon", "-s", "pucvmet", "-d", "1")) if path else None


def source_seconds(program: Program) -> dict[str, float]:
    """CPU seconds of each of the agent's sources since it started."""
    document = json.loads(program.fetch("/api/v1/snapshot"))
    return {s["source"]: s["value"] for s in document["host"]["dgx_agent_read_cpu_seconds_total"]}
