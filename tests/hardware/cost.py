"""What the agent costs: CPU of the whole process beside a bare loop of the same driver calls.

Run as `python -m tests.hardware.cost floor SECONDS STATE` this file is that bare loop.
"""

import gzip
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from agent.polling import intervals
from tests.hardware.bench import Figure, running
from tests.support.repository import ROOT

PORT = 19935
SCRAPE = 15.0
MIB = 1 << 20
ALL_LINKS = 0xFFFFFFFF
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system CPU of a process, all threads."""
    with open(f"/proc/{pid}/stat") as file:
        after_name = file.read().rsplit(")", 1)[1].split()
    return (int(after_name[11]) + int(after_name[12])) / TICKS


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise ValueError(f"no VmRSS of {pid}")


@contextmanager
def agent_process(*flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """The agent as its service runs it, ready: without docstrings, its bytecode compiled before."""
    compiled = [sys.executable, "-OO", "-m", "compileall", "-q", "agent", "exporters"]
    subprocess.run([*compiled, *sys.path[1:]], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    command = [sys.executable, "-OO", "-m", "agent", "run", "--listen", f"127.0.0.1:{PORT}", *flags]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_ready()
        yield process
    finally:
        process.terminate()
        process.wait()


def fetch(path: str) -> bytes:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}",
        headers={
            "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            "Accept-Encoding": "gzip",
        },
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        body = bytes(answer.read())
        return gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body


def wait_ready(timeout: float = 60.0) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            fetch("/-/ready")
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("the agent did not get ready")


def measured(pid: int, seconds: float) -> float:
    """CPU ms a second of the agent while it is scraped each 15 s."""
    fetch("/metrics")
    start, before = time.monotonic(), cpu_seconds(pid)
    while time.monotonic() - start < seconds:
        time.sleep(SCRAPE)
        fetch("/metrics")
    return (cpu_seconds(pid) - before) / (time.monotonic() - start) * 1e3


def figures(seconds: float = 60.0) -> Iterator[Figure]:
    """Idle, then under all-reduce: the agent's CPU against its budget and the floor.

    One after the other, under the same load: two at once would spin on the driver's lock.
    """
    for state, budget in (("idle", 30.0), ("all-reduce", 75.0)):
        with ExitStack() as stack:
            if state != "idle":
                stack.enter_context(running(state, 2 * seconds + 90))
            with agent_process() as process:
                own = measured(process.pid, seconds)
                resident = resident_bytes(process.pid) / MIB
                by_source = source_costs()
            command = [sys.executable, "-m", "tests.hardware.cost", "floor", str(seconds), state]
            floor = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True)
            bare = json.loads(floor.stdout)
        yield Figure(f"agent CPU, {state}", own, 0, budget, "ms/s", f"ms by source {by_source}")
        note = f"bare loop {bare['cpu_ms_per_s']:.1f} ms/s"
        ratio = own / bare["cpu_ms_per_s"]
        yield Figure(f"agent CPU over the bare loop, {state}", ratio, 0, 1.5, "", note)
        note = f"bare loop of pynvml alone {bare['resident_mib']:.1f} MiB"
        yield Figure(f"resident memory, {state}", resident, 0, 64, "MiB", note)


def source_costs() -> dict[str, float]:
    """CPU ms of each source since the agent started."""
    document = json.loads(fetch("/api/v1/snapshot"))
    return {s["source"]: round(s.get("read_cpu_seconds", 0) * 1e3) for s in document["sources"]}


Call = Callable[[Any], Any]


def bare_calls(library: Any, state: str) -> list[tuple[float, Call]]:
    """The driver calls of an agent on GPUs with GPM, each with its interval, and nothing around."""
    n = library
    totals = [(field, ALL_LINKS) for field in (138, 139, 140, 141)]
    links = [(field, link) for link in range(18) for field in (138, 139, 140, 141)]
    errors = [(field, link) for link in range(18) for field in (161, 162, 163)]
    busy = state != "idle"
    cheap: list[Call] = [
        lambda h: n.nvmlDeviceGetUtilizationRates(h),
        lambda h: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2),
        lambda h: n.nvmlDeviceGetPowerUsage(h),
        lambda h: n.nvmlDeviceGetClockInfo(h, 1),
        lambda h: n.nvmlDeviceGetCurrentClocksEventReasons(h),
        lambda h: n.nvmlDeviceGetTemperature(h, 0),
    ]
    slower: list[tuple[float, Call]] = [
        (intervals.ACTIVITY_BUSY if busy else intervals.ACTIVITY_IDLE, _gpm(n)),
        (
            intervals.NVLINK_TOTALS_BUSY if busy else intervals.NVLINK_TOTALS_QUIET,
            lambda h: n.nvmlDeviceGetFieldValues(h, totals),
        ),
        (
            intervals.THROTTLE,
            lambda h: n.nvmlDeviceGetFieldValues(h, [74, 76, 77, 79, 269, 270, 271]),
        ),
        (intervals.THROTTLE, lambda h: n.nvmlDeviceGetClockInfo(h, 0)),
        (intervals.THROTTLE, lambda h: n.nvmlDeviceGetClockInfo(h, 2)),
        (intervals.THROTTLE, lambda h: n.nvmlDeviceGetClockInfo(h, 3)),
        (intervals.THROTTLE, lambda h: n.nvmlDeviceGetEnforcedPowerLimit(h)),
        (intervals.MEMORY_TEMPERATURE, lambda h: n.nvmlDeviceGetFieldValues(h, [82])),
        (intervals.PROCESSES, lambda h: n.nvmlDeviceGetComputeRunningProcesses(h)),
        (intervals.PCIE_LINK, lambda h: n.nvmlDeviceGetCurrPcieLinkGeneration(h)),
        (intervals.PCIE_LINK, lambda h: n.nvmlDeviceGetCurrPcieLinkWidth(h)),
        (intervals.ENERGY, lambda h: n.nvmlDeviceGetTotalEnergyConsumption(h)),
        (intervals.LINKS, lambda h: n.nvmlDeviceGetFieldValues(h, links)),
        (intervals.LINKS, lambda h: n.nvmlDeviceGetFieldValues(h, errors)),
        (intervals.LINKS, lambda h: [n.nvmlDeviceGetNvLinkState(h, link) for link in range(18)]),
        (intervals.LINKS, lambda h: n.nvmlDeviceGetPcieReplayCounter(h)),
        (intervals.LINKS, lambda h: n.nvmlDeviceGetFieldValues(h, [230])),
        (
            intervals.ECC,
            lambda h: [n.nvmlDeviceGetTotalEccErrors(h, s, t) for s in (0, 1) for t in (0, 1)],
        ),
        (intervals.ECC, lambda h: [n.nvmlDeviceGetRemappedRows(h) for _ in range(4)]),
    ]
    return [*((intervals.TICK, call) for call in cheap), *slower]


def _gpm(n: Any) -> Call:
    samples: dict[int, tuple[Any, Any]] = {}

    def measure(handle: Any) -> None:
        key = id(handle)
        if key not in samples:
            samples[key] = (n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc())
            n.nvmlGpmSampleGet(handle, samples[key][0])
            return
        older, newer = samples[key]
        n.nvmlGpmSampleGet(handle, newer)
        question = n.c_nvmlGpmMetricsGet_t()
        question.version = n.NVML_GPM_METRICS_GET_VERSION
        ids = (1, 2, 3, 5, 10, 20, 21, 60, 61)
        question.numMetrics = len(ids)
        question.sample1, question.sample2 = older, newer
        for slot, which in zip(question.metrics, ids, strict=False):
            slot.metricId = which
        n.nvmlGpmMetricsGet(question)
        samples[key] = (newer, older)

    return measure


def _tolerant(library: Any, call: Call, handle: Any) -> None:
    try:
        call(handle)
    except library.NVMLError:
        return


def floor(seconds: float, state: str) -> float:
    """CPU ms a second of the bare loop in this process."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    calls = bare_calls(pynvml, state)
    for _, call in calls:
        for handle in handles:
            _tolerant(pynvml, call, handle)
    # Half an interval in, so that each call runs in `seconds` as often as it should.
    due = [time.monotonic() + interval / 2 for interval, _ in calls]
    start, before = time.monotonic(), time.process_time()
    while time.monotonic() - start < seconds:
        now = time.monotonic()
        for index, (interval, call) in enumerate(calls):
            if now >= due[index]:
                due[index] += interval
                for handle in handles:
                    _tolerant(pynvml, call, handle)
        time.sleep(max(0.0, min(due) - time.monotonic()))
    return (time.process_time() - before) / (time.monotonic() - start) * 1e3


if __name__ == "__main__":
    cost = floor(float(sys.argv[2]), sys.argv[3])
    print(json.dumps({"cpu_ms_per_s": cost, "resident_mib": resident_bytes(os.getpid()) / MIB}))
