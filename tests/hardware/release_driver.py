"""`python -m tests.hardware.release_driver`: the agent gives a real driver back and takes it again.

It starts an agent, counts NVIDIA's device nodes that it has open or mapped and the references to
the kernel module, asks for the driver by the file, counts again, removes the file, and looks
whether the metrics are back and the counters went on. Nothing is unloaded, no setting is changed.
It ends within a minute; its status is 0 where nothing was open and all came back in one process.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent.hardware.nvml import TRIAL
from tests.stack.running import Running

PATIENCE = 20.0
"""Seconds for each step: also for a program that is executed again after ten."""

RELEASED_FOR = 6.0
STATE_SECONDS, ENERGY, GPUS = (
    "dgx_gpu_state_seconds_total",
    "dgx_gpu_energy_joules_total",
    "dgx_system_gpus",
)
STARTED = r"listen=http://127\.0\.0\.1:(\d+)/"


class Look(NamedTuple):
    """Files that are held, and pages that are served."""

    descriptors: int
    mapped: int
    references: str  # to the kernel module, of all programs
    gpus: float
    seconds: float  # of all states
    joules: float


class Watched:
    """A running agent."""

    def __init__(self, running: Running, port: int) -> None:
        self.running, self.port = running, port
        self.pid = running.process.pid

    def descriptors(self) -> list[str]:
        found = []
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                found.append(os.readlink(link))  # noqa: PTH115 - a name that is no path stays whole
            except FileNotFoundError:
                continue
        return [name for name in found if name.startswith("/dev/nvidia")]

    def mapped(self) -> int:
        return Path(f"/proc/{self.pid}/maps").read_text().count("/dev/nvidia")

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def total(self, name: str, text: str = "") -> float:
        lines = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text or self.scrape(), re.MULTILINE)
        return sum(map(float, lines))

    def look(self, when: str) -> Look:
        text, count = self.scrape(), Path("/sys/module/nvidia/refcnt")
        look = Look(
            len(self.descriptors()),
            self.mapped(),
            count.read_text().strip() if count.exists() else "?",
            *(self.total(name, text) for name in (GPUS, STATE_SECONDS, ENERGY)),
        )
        print(f"{when:>9}: {look}", flush=True)
        return look


def until(met: Callable[[], object]) -> float:
    """Seconds until it is so; raises TimeoutError."""
    began = time.monotonic()
    while not met():
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError
        time.sleep(0.05)
    return time.monotonic() - began


def trial() -> None:
    """Measure the cost at start of trying nvmlInit in a child first."""
    began = time.monotonic()
    before = os.times()
    words = [sys.executable, "-I", "-S", "-c", TRIAL]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    took = time.monotonic() - began
    print(f"a trial of nvmlInit: {took:.3f} s, {cpu:.3f} s of CPU, status {done.returncode}")


def main() -> int:
    trial()
    with tempfile.TemporaryDirectory() as folder:
        file, config = Path(folder, "release"), Path(folder, "config.toml")
        config.write_text(f'[driver]\nrelease_file = "{file}"\n')
        began = time.monotonic()
        words = ("run", "--listen", "127.0.0.1:0", "--config", str(config))
        with Running("agent", *words) as running:
            watched = Watched(running, int(running.line(STARTED)[1]))
            until(lambda: watched.total(GPUS) > 0)
            print(f"GPUs are served {time.monotonic() - began:.2f} s after the start")
            time.sleep(6.0)
            print("open:", *sorted(watched.descriptors()))
            return judged(watched, file)


def judged(watched: Watched, file: Path) -> int:
    before = watched.look("before")
    file.touch()
    took = until(lambda: not watched.descriptors() and not watched.mapped())
    print(f"all is given back {took:.2f} s after the file")
    time.sleep(RELEASED_FOR)
    meanwhile = watched.look("released")
    file.unlink()
    took = until(lambda: watched.total(GPUS) == before.gpus)
    print(f"the GPUs are served again {took:.2f} s after the file went")
    time.sleep(12.0)  # energy is read every ten seconds
    after = watched.look("after")
    watched.running.process.terminate()
    watched.running.process.wait(PATIENCE)
    watched.running.line("event=stopped")
    print("".join(watched.running.said))
    again = any("event=restarting" in line for line in watched.running.said)
    good = {
        "GPUs were served": before.gpus > 0 and before.descriptors > 0,
        "nothing was open": meanwhile.descriptors == meanwhile.mapped == 0,
        "no GPU was served meanwhile": meanwhile.gpus == 0,
        "all came back": after.gpus == before.gpus and after.descriptors > 0,
        "NVML alone closed everything": not again,
        "seconds of states went on": after.seconds > before.seconds,
        "energy went on": after.joules >= before.joules,
    }
    for what, so in good.items():
        print(f"{'yes' if so else 'NO':>4}  {what}")
    return 0 if all(good.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
