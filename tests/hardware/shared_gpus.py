"""Shares of a GPU that two and three loads use in turns, against their own time:
`python -m tests.hardware.shared_gpus`, six minutes on one GPU.

Each load repeats matrix products, of which it has measured the time while it was alone; its own
time is how often it did so. An agent with `job.info` runs beside them, and its shares of the last
minute are printed with the true ones of the same minute.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

PORT = 9936
SIZE, AT_ONCE = 8192, 12
SETTLES, MEASURED = 80.0, 60.0
CASES = (1.0, 0.3), (1.0, 1.0, 0.25)
"""Shares of the time that each load would use alone."""


def load(folder: Path, name: str, share: float) -> None:
    """Measure the product alone, then repeat it once `go` exists; count in a file."""
    import torch  # only where there is a GPU

    one = torch.zeros(SIZE, SIZE, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(one)

    def work() -> float:
        began = time.monotonic()
        for _ in range(AT_ONCE):
            torch.mm(one, one, out=out)
        torch.cuda.synchronize()
        return time.monotonic() - began

    alone = min(work() for _ in range(100))
    (folder / f"{name}.ready").write_text(f"{os.getpid()} {alone}")
    while not (folder / "go").exists():
        time.sleep(0.05)
    done = 0
    while True:
        work()
        done += 1
        (folder / f"{name}.new").write_text(str(done))
        (folder / f"{name}.new").replace(folder / f"{name}.done")
        time.sleep(alone * (1 / share - 1))


def asked(path: str) -> bytes:
    return bytes(urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=5).read())


def jobs() -> dict[int, dict[str, Any]]:
    """The running jobs by process."""
    running = json.loads(asked("/api/v1/jobs"))["running"]
    return {pid: job for job in running for pid in job["pids"]}


def spent(job: dict[str, Any]) -> float:
    """GPU-seconds that are booked for a job."""
    seconds: list[float] = [*job["gpu_seconds"].values(), job["gpu_seconds_unobserved"]]
    return sum(seconds)


class Load(NamedTuple):
    """A load that runs: what it wants, its process, and the seconds of its products alone."""

    shell: subprocess.Popen[bytes]
    wants: float
    pid: int
    alone: float
    counted: Path

    def own(self) -> float:
        """Seconds of the GPU that it has had."""
        return int(self.counted.read_text()) * self.alone


def begun(folder: Path, number: int, wants: float) -> Load:
    """Start a load, and wait until it has measured."""
    command = f"{sys.executable} -m tests.hardware.shared_gpus {folder} {number} {wants}; true"
    # a shell is no job: what it starts are jobs of their own
    shell = subprocess.Popen(["bash", "-c", command], start_new_session=True)
    ready = folder / f"{number}.ready"
    while not ready.exists() or not ready.read_text():
        time.sleep(0.1)
    pid, seconds = ready.read_text().split()
    return Load(shell, wants, int(pid), float(seconds), folder / f"{number}.done")


def play(case: Sequence[float], folder: Path) -> None:
    """Let the loads run together, and print their shares of the last minute."""
    loads = [begun(folder, number, wants) for number, wants in enumerate(case)]
    try:
        (folder / "go").touch()
        time.sleep(SETTLES)
        first, before = [load.own() for load in loads], jobs()
        time.sleep(MEASURED)
        own, after = [load.own() for load in loads], jobs()
        own = [b - a for a, b in zip(first, own, strict=True)]
        grown = [spent(after[load.pid]) - spent(before[load.pid]) for load in loads]
        print(f"{len(case)} loads: {sum(own):.1f} of {MEASURED} s at work, {sum(grown):.1f} booked")
        for load, had, booked in zip(loads, own, grown, strict=True):
            job = after[load.pid]
            said, receipt = job["gpus"][0]["share"], booked / sum(grown) if sum(grown) else None
            undivided = job["gpu_seconds_undivided"]
            print(f"  wants {load.wants}, {load.alone:.5f} s alone: true {had / sum(own):.4f}")
            print(f"    agent {said}, receipt {receipt}, {undivided:.1f} s undivided")
        lines = asked("/metrics").decode().splitlines()
        print("\n".join(line for line in lines if "job_share" in line), flush=True)
    finally:
        for load in loads:
            os.killpg(load.shell.pid, signal.SIGKILL)
            load.shell.wait()


def main() -> None:
    with TemporaryDirectory() as name:
        config = Path(name) / "config.toml"
        config.write_text("[job]\ninfo = true\n[cost]\ngpu_hour = 3.6\n")
        listen = f"127.0.0.1:{PORT}"
        command = [
            sys.executable,
            "-m",
            "agent",
            "run",
            "--config",
            str(config),
            "--listen",
            listen,
        ]
        agent = subprocess.Popen(command)
        try:
            for number, case in enumerate(CASES):
                folder = Path(name) / str(number)
                folder.mkdir()
                play(case, folder)
        finally:
            agent.terminate()
            agent.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
    else:
        main()
