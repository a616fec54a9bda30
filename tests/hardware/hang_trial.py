"""`python -m tests.hardware.hang_trial --out DIR`: a job of two GPUs hangs, and NCCL is not asked.

An agent with its default settings watches a training of two ranks (PyTorch, NCCL) that works for
25 s. Then rank 1 is stopped by a signal and goes on later; in a second run it waits for input that
never comes; in a third it sleeps four seconds in a slow batch and goes on, which is no hang.
Printed is after how many seconds the gauge and the API say that the job hangs, when the API names
the process, whether it is the right one, and what was wrong. Less than four minutes.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.hardware.bench import TORCH_PYTHON, Figure
from tests.support.repository import ROOT

HEALTHY = 15.0
"""Seconds of work before anything happens."""

WATCHED = 30.0
RESUMED = 15.0
SLEEP = 4.0
POLL = 0.5
READY = 60.0
WITHIN = 20.0
ALL = 235.0
"""Seconds for everything; what is late then is left out and counts as missed."""

WAYS = ("stopped", "input", "slow")
STATE = re.compile(r'^dgx_gpu_state\{.*?gpu="(\d+)".*?state="hung".*\} 1(?:\.0)?$', re.MULTILINE)
NAMED = re.compile(r'^dgx_gpu_hung_info\{.*?pid="(\d*)".*\} 1(?:\.0)?$', re.MULTILINE)


# ---- the load: one process a rank


def train(rank: int, port: int, way: str) -> None:
    """Train until it is killed; rank 1 does at HEALTHY seconds what `way` says."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    layers = [torch.nn.Linear(4096, 4096, device="cuda") for _ in range(8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = torch.randn(8192, 4096, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()  # as a training that prints its loss: it waits for the GPU

    for _ in range(20):
        step()
    _say("steady")
    begun, done = time.monotonic(), False
    while True:
        if rank == 1 and not done and way != "stopped" and time.monotonic() >= begun + HEALTHY:
            done = True
            _say("waits")
            if way == "slow":
                time.sleep(SLEEP)
            else:
                reading, _writing = os.pipe()
                os.read(reading, 1)
        step()


def _say(event: str) -> None:
    print(json.dumps({"event": event, "at": time.monotonic()}), flush=True)


@dataclass(slots=True)
class Rank:
    """A rank, and when it said what (CLOCK_MONOTONIC, s)."""

    process: "subprocess.Popen[str]"
    said: dict[str, float] = field(default_factory=dict)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                self.said.setdefault(event["event"], event["at"])


@contextmanager
def load(way: str, log: Path) -> Iterator[list[Rank]]:
    """Both ranks; killed at the end, whatever state they are in."""
    port = free_port()
    ranks: list[Rank] = []
    with log.open("w") as errors:
        try:
            for number in range(2):
                words = ["--rank", str(number), "--port", str(port), "--way", way]
                shown = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
                process = subprocess.Popen(
                    [TORCH_PYTHON, "-m", "tests.hardware.hang_trial", *words],
                    cwd=ROOT,
                    env=os.environ | shown,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
                ranks.append(Rank(process))
                threading.Thread(target=ranks[-1].listen, daemon=True).start()
            yield ranks
        finally:
            for rank in ranks:
                with suppress(ProcessLookupError):
                    rank.process.send_signal(signal.SIGCONT)
                rank.process.kill()
                rank.process.wait()


# ---- the agent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        return int(reserved.getsockname()[1])


@contextmanager
def agent(log: Path, *words: str) -> Iterator[str]:
    """The address of an agent with its default settings, once it is ready."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "agent", "run", "--listen", url.removeprefix("http://")]
    with log.open("w") as out:
        process = subprocess.Popen([*command, *words], cwd=ROOT, stdout=out, stderr=out)
        try:
            end = time.monotonic() + READY
            while time.monotonic() < end:
                with suppress(OSError):
                    text(f"{url}/-/ready")
                    break
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(10)


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as reply:
        return str(reply.read().decode())


# ---- one run


@dataclass(slots=True)
class Seen:
    """Reports of the agent in one run; seconds after the fault, None if there was none."""

    way: str
    pid: int
    gauge: float | None = None  # both GPUs hung
    hang: float | None = None  # the API has a hang
    named: float | None = None  # the API names the process
    metric: float | None = None  # dgx_gpu_hung_info names it
    gone: float | None = None  # after it went on: no GPU is called hung any more
    false: int = 0  # polls that said hung of a job that did not
    wrong: list[int | None] = field(default_factory=list)  # processes that were named wrongly
    sentences: list[str] = field(default_factory=list)

    def look(self, url: str, fault: float | None) -> bool:
        """One poll; whether a hang is said. `fault` is None while the job gets on."""
        metrics, jobs = text(f"{url}/metrics"), json.loads(text(f"{url}/api/v1/jobs"))
        after = time.monotonic() - (fault or 0.0)
        gpus, pids = STATE.findall(metrics), NAMED.findall(metrics)
        hangs: list[dict[str, Any]] = [job["hang"] for job in jobs["running"] if job["hang"]]
        named = [one["pid"] for hang in hangs for one in hang["waits_for"]]
        if fault is None:
            self.false += bool(gpus or hangs or pids)
            return bool(gpus or hangs)
        if len(gpus) >= 2:
            self.gauge = self.gauge or after
        if hangs:
            self.hang = self.hang or after
            said = [job["sentence"] for job in jobs["running"] if job["hang"]]
            self.sentences += [one for one in said if not self.sentences]
        if self.pid in named:
            self.named = self.named or after
        if str(self.pid) in pids:
            self.metric = self.metric or after
        self.wrong += [pid for pid in named if pid != self.pid]
        return bool(gpus or hangs)

    @property
    def complete(self) -> bool:
        return None not in (self.gauge, self.hang, self.named, self.metric)

    def figures(self) -> Iterator[Figure]:
        """In the order of their time; a hang is not expected of a slow batch."""
        nan = float("nan")
        yield Figure(f"{self.way}: polls that said hung of a job that works", self.false, 0, 0, "")
        if self.way == "slow":
            return
        for name, value in (
            ("gauge says hung", self.gauge),
            ("API says hung", self.hang),
            ("API names the process", self.named),
            ("metric names the process", self.metric),
        ):
            yield Figure(
                f"{self.way}: {name} after", nan if value is None else value, 0, WITHIN, "s"
            )
        yield Figure(f"{self.way}: other processes named", len(self.wrong), 0, 0, "")
        if self.way == "stopped":
            gone = nan if self.gone is None else self.gone
            yield Figure("stopped: over, after it went on", gone, 0, RESUMED, "s")


def watch(seen: Seen, url: str, seconds: float, fault: float | None = None) -> None:
    """Poll for so long, or until all is said of the fault."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (fault is not None and seen.complete):
        seen.look(url, fault)
        time.sleep(POLL)


def play(way: str, url: str, out: Path) -> Seen:
    """One run."""
    with load(way, out / f"load-{way}.log") as ranks:
        seen, late = Seen(way, ranks[1].process.pid), ranks[1]
        end = time.monotonic() + READY
        while "steady" not in late.said and time.monotonic() < end:
            seen.look(url, None)
            time.sleep(POLL)
        if "steady" not in late.said:
            raise SystemExit(f"the load did not start within {READY:g} s: see {out}")
        while way != "stopped" and "waits" not in late.said:
            watch(seen, url, POLL)
        if way == "stopped":
            watch(seen, url, late.said["steady"] + HEALTHY - time.monotonic())
            late.process.send_signal(signal.SIGSTOP)
            late.said["waits"] = time.monotonic()
        if way == "slow":
            watch(seen, url, SLEEP + WITHIN / 2)
            return seen
        watch(seen, url, WATCHED, late.said["waits"])
        if way == "stopped":
            late.process.send_signal(signal.SIGCONT)
            resumed = time.monotonic()
            while seen.gone is None and time.monotonic() < resumed + RESUMED:
                time.sleep(POLL)
                if not Seen(way, seen.pid).look(url, None):
                    seen.gone = time.monotonic() - resumed
        return seen


def real(out: Path) -> Iterator[Seen]:
    end = time.monotonic() + ALL
    with agent(out / "agent.log") as url:
        for way in WAYS:
            if time.monotonic() + HEALTHY + WATCHED > end:
                print(f"{way}: left out, time is over", flush=True)
                return
            yield play(way, url, out)


def main() -> int:
    """Print a line a figure; 1 if one is out of its bounds or a run is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, default="stopped")
    given = parser.parse_args()
    if given.rank is not None:
        train(given.rank, given.port, given.way)
    given.out.mkdir(parents=True, exist_ok=True)
    runs, right = [], True
    for seen in real(given.out):
        runs.append(asdict(seen))
        (given.out / "hang_trial.json").write_text(json.dumps(runs, indent=2))
        for figure in seen.figures():
            print(figure, flush=True)
            right = right and figure.holds
        print(*seen.sentences, sep="\n", flush=True)
    return int(not right or len(runs) < len(WAYS))


if __name__ == "__main__":
    sys.exit(main())
