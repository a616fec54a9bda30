"""One GPU whose driver calls hang, beside one that is well: `python -m tests.hardware.ill_gpu`.

Two agents watch the same two GPUs under a load. In front of the driver of one stands a library that
lets one call of the second GPU take 45 s, every minute, so that NVML's own locks are held as in
life. What that agent says of the other GPU is compared with what the untouched one says. The
library is built with gcc, or given: `--library slow_ioctl.so`. Takes less than four minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.hardware.bench import Figure

SOURCE = Path(__file__).with_name("slow_ioctl.c")
SLOWED_PORT, PLAIN_PORT = 29741, 29742
DELAY, EACH, TIMES, AFTER = 45, 60.0, 2, 10.0  # s; how often
LOOKS = 4
"""Looks a second: a sample that comes 0.3 s late is no lost one."""

READY = 60.0  # s
MOST_LOST, MOST_APART = 0.01, 0.01  # of the samples; of the time
STATE, UNOBSERVED = "dgx_gpu_state_seconds_total", "dgx_gpu_unobserved_seconds_total"
ACTIVE, TOOK = "dgx_gpu_active_seconds_total", "dgx_gpu_read_seconds"
UP = 'dgx_agent_source_up{source="nvml"}'

Scrape = dict[str, float]


def built(folder: Path) -> Path:
    """The library in front of the driver, made here."""
    library = folder / "slow_ioctl.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True)
    return library


def scrape(port: int) -> Scrape:
    """Every series of an agent; none while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {series: float(value) for series, _, value in pairs}


@contextmanager
def process(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    """A program that is ended afterwards."""
    with log.open("w") as out:
        running = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            running.kill()
            running.wait()


def of_gpu(found: Scrape, metric: str, gpu: str) -> Scrape:
    """The series of a metric for one GPU."""
    start, label = f"{metric}{{", f'gpu="{gpu}"'
    return {name: v for name, v in found.items() if name.startswith(start) and label in name}


class Watched:
    """Reports of one agent, scrape by scrape."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.first: Scrape = {}
        self.last: Scrape = {}
        self.samples: Counter[str] = Counter()  # by GPU: scrapes with a new value of its activity
        self.longest: dict[str, float] = {}
        self.blind = 0

    def look(self) -> None:
        """Scrape it, and count what is new."""
        now = scrape(self.port)
        self.first = self.first or now
        self.blind += now.get(UP) != 1.0
        for gpu in ("0", "1"):
            took = max(of_gpu(now, TOOK, gpu).values(), default=0.0)
            self.longest[gpu] = max(self.longest.get(gpu, 0.0), took)
            active = of_gpu(now, ACTIVE, gpu)
            self.samples[gpu] += bool(active) and active != of_gpu(self.last, ACTIVE, gpu)
        self.last = now or self.last

    def grown(self, metric: str, gpu: str) -> Scrape:
        """Growth of the series of one GPU since the first scrape."""
        now, before = of_gpu(self.last, metric, gpu), of_gpu(self.first, metric, gpu)
        return {name: value - before.get(name, 0.0) for name, value in now.items()}

    def shares(self, gpu: str) -> Scrape:
        """Shares of the time by state and cause."""
        seconds = self.grown(STATE, gpu)
        whole = sum(seconds.values()) or 1.0
        return {name: value / whole for name, value in seconds.items()}


def measure(library: Path, folder: Path, times: int) -> tuple[Watched, Watched]:
    """Watch both agents while calls of one hang; the slowed one comes first."""
    token, said = folder / "slow", folder / "calls"
    seconds = str(EACH * times + AFTER + 2 * READY)
    both = Watched(SLOWED_PORT), Watched(PLAIN_PORT)
    slowed = {
        "LD_PRELOAD": str(library),
        "SLOW_GPU": "1",
        "SLOW_SECONDS": str(DELAY),
        "SLOW_FILE": str(token),
        "SLOW_LOG": str(said),
    }
    with ExitStack() as stack:
        load = ["tests.hardware.loads", "matrices", seconds]
        stack.enter_context(process(load, folder / "load.log"))
        for watched, environment in zip(both, (slowed, {}), strict=True):
            command = ["agent", "run", "--listen", f"127.0.0.1:{watched.port}"]
            log = folder / f"agent-{watched.port}.log"
            stack.enter_context(process(command, log, **environment))
        until = time.monotonic() + READY
        while not all(scrape(one.port).get(UP) == 1.0 for one in both):
            if time.monotonic() > until:
                raise SystemExit("an agent did not answer: see its log in " + str(folder))
            time.sleep(0.5)
        time.sleep(15.0)  # the load is under way, and everything was read once
        began = time.monotonic()
        for look in range(round(EACH * times + AFTER) * LOOKS):
            if look % round(EACH * LOOKS) == round(AFTER * LOOKS):
                token.touch()
            for one in both:
                one.look()
            time.sleep(max(0.0, began + (look + 1) / LOOKS - time.monotonic()))
    return both


def figures(slowed: Watched, plain: Watched, well: str) -> Iterator[Figure]:
    """Return the losses that the healthy GPU has from the other."""
    lost = 1 - slowed.samples[well] / max(1, plain.samples[well])
    yield Figure("samples lost of the other GPU", lost * 100, -100, MOST_LOST * 100, "%")
    known = sum(slowed.grown(STATE, well).values())
    missed = sum(slowed.grown(UNOBSERVED, well).values())
    unobserved = missed / max(1.0, known + missed)
    yield Figure("its time unobserved", unobserved * 100, 0, MOST_LOST * 100, "%")
    mine, theirs = slowed.shares(well), plain.shares(well)
    apart = max(abs(mine.get(k, 0.0) - theirs.get(k, 0.0)) for k in mine | theirs)
    yield Figure("its shares differ at most by", apart * 100, 0, MOST_APART * 100, "points")
    yield Figure("scrapes without the nvml source", slowed.blind, 0, 0, "")


def main() -> int:
    """Run it and print the figures; 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, help="slow_ioctl.so, where there is no gcc")
    parser.add_argument("--keep", type=Path, help="a folder for the logs")
    parser.add_argument("--times", type=int, default=TIMES, help="how often a call hangs")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="ill-gpu-"))
    folder.mkdir(parents=True, exist_ok=True)
    slowed, plain = measure(arguments.library or built(folder), folder, arguments.times)
    ill = max(slowed.longest, key=lambda gpu: slowed.longest[gpu])
    well = "0" if ill == "1" else "1"
    print(f"longest read by GPU: slowed {slowed.longest}, untouched {plain.longest}")
    print(f"samples by GPU: slowed {dict(slowed.samples)}, untouched {dict(plain.samples)}")
    print("shares of the other GPU, slowed and untouched:")
    theirs = plain.shares(well)
    for name, value in slowed.shares(well).items():
        if value or theirs.get(name):
            print(f"  {value:.4f} {theirs.get(name, 0.0):.4f} {name}")
    said = folder / "calls"
    delays = said.read_text().splitlines() if said.exists() else []
    came = 0
    for line in delays:
        began, ended, call, others, own = line.split()
        came += int(others) > 0
        print(
            f"ioctl {call} of GPU {ill} took {float(ended) - float(began):.1f} s longer: {others} "
            f"calls of the other GPU and {own} more of its own came back meanwhile"
        )
    held = [*figures(slowed, plain, well)]
    held.append(Figure("calls delayed", len(delays), arguments.times, arguments.times, ""))
    held.append(
        Figure(
            "delays with calls of the other GPU", came, arguments.times, arguments.times, "", LOCK
        )
    )
    print(*held, sep="\n")
    for log in sorted(folder.glob("agent-*.log")):
        lines = [x for x in log.read_text().splitlines() if "answer" in x or "stalled" in x]
        print(log.name, *lines[:20], sep="\n  ")
    return 0 if all(figure.holds for figure in held) else 1


LOCK = "(0: NVML's own lock was held, all GPUs are blind, and source nvml must be down)"

if __name__ == "__main__":
    raise SystemExit(main())
