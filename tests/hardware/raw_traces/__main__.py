"""`python -m tests.hardware.raw_traces DIR [SLOT ...] [--seconds S] [--until S] [--no-driver]`.

Plays labelled loads one after the other and records what driver and kernel tell meanwhile. A slot
is a load, or loads of one GPU joined by `+` that run beside each other, on one GPU each in turn;
`ras` asks NCCL about a job. The recordings come to rest in `DIR/traces-N.tar`, none above 8 MiB,
as soon as each is over.
"""

import argparse
import gzip
import json
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hardware.labelled_loads.table import LOADS
from tests.hardware.raw_traces.ras_session import JOB, SECONDS, Questions, session
from tests.hardware.raw_traces.running import Failed, PlayedLoad, Recorders

SLOTS = (
    *("exposed-10-200ms", "disk-direct+resnet", "gpt", "hang-counts", "threads+little"),
    *("exposed-25-20ms", "late-5-sleeping", "checkpoint", "processes+jax", "ras", "pipeline"),
    *("exposed-75-2000ms", "disk-cached+server-without-demand", "hang-stopped", "overlapped"),
    *("main-process+diffusion", "late-20-sleeping", "gpt-accumulating", "network+compile"),
    *("exposed-50-200ms", "all-to-all", "disk-mapped+server", "hang-input", "sharded"),
    *("late-10-computing", "processes-nearly-enough+graph-network", "gpt-validating"),
    *("exposed-50-20ms", "exposed-25-2000ms", "hang-first-stopped"),
)
AHEAD = 5  # slots whose loads have imported their libraries already
WARM_UP = 40.0  # s at most
AFTER = 5.0  # s at most until the load has told what it did
TAR_BYTES = 7 << 20

_ONE = ("text", "verbose", "json")
ASKED: dict[str, tuple[tuple[float, tuple[str, ...]], ...]] = {
    "hang-counts": ((2.0, _ONE), (6.0, _ONE), (9.0, ("json",)), (11.5, ("text", "json"))),
    "hang-input": ((2.0, ("json",)), (6.0, _ONE), (10.0, ("text", "json"))),
    "hang-stopped": ((2.0, ("text", "json")), (4.6, ("repeated",)), (10.0, ("verbose",))),
    "hang-first-stopped": ((2.0, ("json",)), (4.6, ("repeated",))),
    "overlapped": ((5.0, ("text",)),),
    "sharded": ((6.0, ("text", "json")),),
    "pipeline": ((6.0, ("text", "json")),),
}
"""At which seconds of the steady phase NCCL is asked what."""


class Archive:
    """Files, as soon as they are there, in tars of a bounded size."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 1
        self._lock = threading.Lock()

    def add(self, *paths: Path) -> None:
        """Take these and remove them."""
        with self._lock:
            tar = self._directory / f"traces-{self._number}.tar"
            with tarfile.open(tar, "a") as archive:
                for path in paths:
                    archive.add(path, path.name)
                    path.unlink()
            if tar.stat().st_size > TAR_BYTES:
                self._number += 1


class Session:
    """All slots of one call."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._start = time.monotonic()
        self._archive = Archive(given.directory)
        self._work = Path(tempfile.mkdtemp(prefix="traces-"))
        self._ready: dict[str, list[PlayedLoad]] = {}
        self._saving: list[threading.Thread] = []

    def run(self, slots: list[str]) -> int:
        """Play them; the number of those that failed."""
        failed = 0
        for place, slot in enumerate(slots):
            for later in slots[place : place + AHEAD]:
                self._prepare(later)
            left = self._given.until - (time.monotonic() - self._start)
            if left < self._seconds(slot) + 8:
                self._say(f"no time left for {slot}")
                continue
            try:
                self._play(slot)
            except (Failed, OSError, ValueError, KeyError, StopIteration):
                failed += 1
                self._say(f"FAILED {slot}")
                traceback.print_exc()
            finally:
                for load in self._ready.pop(slot, []):
                    load.stop()
        for loads in self._ready.values():
            for load in loads:
                load.stop()
        for thread in self._saving:
            thread.join()
        return failed

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:6.1f} {text}", flush=True)

    def _seconds(self, slot: str) -> float:
        if slot == "ras":
            return 38.0
        return self._given.seconds or max(LOADS[name].seconds for name in slot.split("+"))

    def _prepare(self, slot: str) -> None:
        if slot in self._ready:
            return
        if slot == "ras":
            self._ready[slot] = [PlayedLoad(JOB, SECONDS) for _ in range(2)]
            return
        self._ready[slot] = [
            PlayedLoad(name, self._seconds(slot) + 60, number % 2)
            for number, name in enumerate(slot.split("+"))
        ]

    def _play(self, slot: str) -> None:
        if slot == "ras":
            self._keep_json("ras", session(*self._ready[slot]))
            self._say("ras")
            return
        loads = self._ready[slot]
        stem = self._work / slot
        begun = time.monotonic()
        roots = [load.process.pid for load in loads]
        recorders = Recorders(roots, stem, driver=not self._given.no_driver)
        try:
            for load in loads:
                load.go()
            steady = _all_steady(loads)
            asked = [Questions(steady, ASKED[x.name]) for x in loads if x.name in ASKED]
            for questions in asked:
                questions.start()
            until = steady + self._seconds(slot)
            time.sleep(max(0.0, until - time.monotonic()))
        finally:
            recorders.stop()
        for load in loads:
            load.await_truth(until, AFTER)
        for questions in asked:
            questions.join(20)
        told = [{"load": x.name, "gpu": x.gpu, "lines": x.lines()} for x in loads]
        talks = [talk for questions in asked for talk in questions.talks]
        facts = {"begun": begun, "steady": steady, "until": until, "loads": told, "ras": talks}
        self._say(f"{slot}: steady after {steady - begun:.1f} s")
        for line in _summary(loads, steady, until):
            print("       " + line, flush=True)
        saving = threading.Thread(target=self._save, args=(slot, facts, recorders))
        saving.start()
        self._saving.append(saving)

    def _save(self, slot: str, facts: dict[str, Any], recorders: Recorders) -> None:
        recorders.join()
        for part in ("kernel", "driver"):
            path = self._work / f"{slot}.{part}.json"
            if path.exists():
                facts[part] = json.loads(path.read_text(encoding="utf-8"))
                path.unlink()
        self._archive.add(*self._work.glob(f"{slot}.*.npz"))
        self._keep_json(slot, facts)

    def _keep_json(self, name: str, content: Any) -> None:
        path = self._work / f"{name}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(content).encode()))
        self._archive.add(path)


def _all_steady(loads: list[PlayedLoad]) -> float:
    """When the last one became steady (CLOCK_MONOTONIC, s)."""
    steady, wrong = [], []
    end = time.monotonic() + WARM_UP
    for load in loads:
        try:
            steady.append(load.await_steady(end - time.monotonic()))
        except Failed as failed:
            wrong.append(str(failed))
    if wrong:
        raise Failed("\n".join(wrong))
    return max(steady)


def _summary(loads: list[PlayedLoad], steady: float, until: float) -> Iterator[str]:
    """A line a rank: its true shares and steps."""
    for load in loads:
        for truth in load.truths().values():
            shares = truth.shares(steady, until)
            told = " ".join(f"{label} {share:.3f}" for label, share in shares.items())
            lengths = sorted(truth.lengths(steady, until))
            steps = f"{len(lengths)} steps"
            if lengths:
                steps += f" of {lengths[len(lengths) // 2]:.4f} s"
                steps += f" ({lengths[len(lengths) // 20]:.4f} to {lengths[-1]:.4f})"
            yield f"{load.name} rank {truth.rank} gpu {truth.gpu}: {told}; {steps}"


def main(words: list[str]) -> int:
    """Play and record."""
    parser = argparse.ArgumentParser(description="Record labelled loads.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("slots", nargs="*")
    parser.add_argument("--seconds", type=float, help="of each load, in the place of its own")
    parser.add_argument("--until", type=float, default=540.0, help="no slot begins too late")
    parser.add_argument("--no-driver", action="store_true", help="there is none")
    given = parser.parse_args(words)
    given.directory.mkdir(parents=True, exist_ok=True)
    return int(Session(given).run(given.slots or list(SLOTS)) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
