"""Runs in place of the agent: GPUs are simulated, and the processes on them are those of this
machine whose numbers stand in /run/gpus/N, for the GPU with the device file /dev/nvidiaN.

NVML's index of a GPU and the number of its device file differ, as on real machines.
"""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from agent.cli import run
from agent.cli.assembly import Hardware
from agent.cli.parser import run_command
from agent.clock import Clock
from agent.hardware.files import RealFiles
from agent.hardware.host import Host, real_host
from agent.jobs.allocation import DRIVER
from agent.simulator import SimulatedSystem, parse
from agent.simulator.gpu import SimulatedGpuProcess

GIB = 1 << 30
USED = Path("/run/gpus")
MINORS = (2, 0, 3, 1)
"""The numbers of device files by NVML's index."""


class DriverFiles(RealFiles):
    """The files of this machine, and those of a driver, which says which GPU has which device."""

    def __init__(self, uuids: Iterator[str]) -> None:
        super().__init__("/")
        self._files = {
            f"0000:{number:02x}:00.0": f"GPU UUID: \t {uuid}\nDevice Minor: \t {MINORS[number]}\n"
            for number, uuid in enumerate(uuids)
        }

    def names(self, path: str) -> list[str]:
        return sorted(self._files) if path == DRIVER else super().names(path)

    def read(self, path: str) -> str:
        if path.startswith(DRIVER):
            return self._files[path.split("/")[-2]]
        return super().read(path)


def follow(machine: SimulatedSystem) -> None:
    """Put on each GPU the processes that are there now."""
    while True:
        for gpu, minor in zip(machine.gpus, MINORS, strict=True):
            pids = list(_alive(USED / str(minor)))
            if pids != [process.pid for process in gpu.processes]:
                with machine.lock:
                    machine.advance()
                    gpu.processes = [SimulatedGpuProcess(pid, GIB) for pid in pids]
                    gpu.apply(machine.now)
        time.sleep(0.1)


def _alive(file: Path) -> Iterator[int]:
    for word in file.read_text().split() if file.exists() else ():
        if Path(f"/proc/{word}").exists():
            yield int(word)


def hardware(_: object, clock: Clock, **_kept: object) -> Hardware:
    """In place of `hardware_of`."""
    machine = SimulatedSystem(parse("dgx-station-v100:idle"), clock)
    threading.Thread(target=follow, args=(machine,), daemon=True).start()
    real = real_host()
    files = DriverFiles(gpu.uuid for gpu in machine.gpus)
    host = Host(files, real.psutil, login=real.login, schedulers=real.schedulers)
    return Hardware(lambda: machine.nvml, host)


if __name__ == "__main__":
    setattr(run, "hardware_of", hardware)  # noqa: B010
    sys.exit(run_command(["run"]))
