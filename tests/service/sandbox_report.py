"""Runs in place of the agent, inside the sandbox of its unit, and prints as JSON what it could do.

sandbox_report.py devices PATH...   what opening these gives, each as soon as it is there
sandbox_report.py diagnosis PID     what the agent makes of a GPU that this process uses: NVML is
                             simulated, /proc and /sys are what the unit shows
"""

import asyncio
import errno
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from agent.cli.assembly import Agent, Hardware
from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.diagnosis import accounting
from agent.hardware.host import real_host
from agent.series import SampleStore
from agent.simulator import SimulatedSystem, parse
from agent.sources import host, workload
from agent.sources.workload import JobConfig

READINGS = 4
"""Readings of the threads of GPU 0, one a second, until its inactive time is divided by them."""

SIMULATED = "dgx-h100:starved-network"
"""GPUs that wait; for what, only the host can report, and the host is the real one."""


def opening(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.05)
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "opened"


class OneProcess:
    """A simulated NVML that names one process, which is none of its own."""

    def __init__(self, library: Any, pid: int) -> None:
        self._library = library
        self._pid = pid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:  # noqa: N802
        found: list[Any] = self._library.nvmlDeviceGetComputeRunningProcesses(handle)[:1]
        for process in found:
            process.pid = self._pid
        return found


async def follow(agent: Agent) -> None:
    """Follow the loaders of GPU 0 for a while. asyncio.run writes out the result, so there is
    none: a store of samples takes it seven seconds of a processor."""
    readings = 0
    while readings <= READINGS:
        await agent.poller.tick()
        readings += bool(SampleStore.of(agent.poller.latest).where(workload.THREADS, gpu="0"))
        await asyncio.sleep(1.0)


def diagnosis(pid: int) -> dict[str, Any]:
    clock = SystemClock()
    machine = SimulatedSystem(parse(SIMULATED), clock)
    clock.skip(60.0)
    hardware = Hardware(lambda: OneProcess(machine.nvml, pid), real_host())
    agent = Agent(Settings(JobConfig(info=True)), hardware, clock)
    asyncio.run(follow(agent))
    look = SampleStore.of(agent.poller.latest)
    states = look.where(accounting.STATE, gpu="0").items()
    return {
        "uid": os.getuid(),
        "verdict": [labels[2:] for labels, value in states if value],
        "mounts": look.value(host.MOUNTS),
        "jobs": [labels for labels in look.labelled(workload.JOB_PIDS) if labels["gpu"] == "0"],
        "workers": list(look.where(workload.WORKERS, gpu="0").values()),
        "seconds": {
            " ".join(key[2:]): s for key, s in look.where(workload.THREADS, gpu="0").items()
        },
    }


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    found = diagnosis(int(words[0])) if what == "diagnosis" else {p: opening(p) for p in words}
    print(json.dumps(found))
