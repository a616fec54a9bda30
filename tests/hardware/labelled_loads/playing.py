"""Labelled loads in processes of their own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.hardware.labelled_loads.load import LabelledLoad
from tests.hardware.labelled_loads.table import LOADS
from tests.hardware.labelled_loads.truth import RankTruth, truths

ROOT = Path(__file__).parents[3]


class Failed(Exception):
    """A load did not come to its steady phase."""


def cgroup_root() -> Path | None:
    """Return the mount point of cgroup2; None if there is none."""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


class PlayedLoad:
    """One labelled load: stands by, plays, is ended with all that it began."""

    def __init__(self, name: str, seconds: float, gpu: int = 0, ranks: int = 2) -> None:
        self.name, self.gpu = name, gpu
        self.load: LabelledLoad = LOADS[name].over(ranks)
        self._room = Path(tempfile.mkdtemp(prefix=".load-", dir=os.environ.get("TMPDIR") or ROOT))
        self._out = self._room / "out"
        self._errors = self._room / "errors"
        words = ["tests.hardware.labelled_loads", name, str(seconds)]
        words += ["--gpu", str(gpu), "--ranks", str(ranks)]
        with open(self._out, "ab") as out, open(self._errors, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words, "--standby"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                cwd=ROOT,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self._room)},
            )
        self._in_cgroup()

    def _in_cgroup(self) -> None:
        """A group of its own, where the machine has cgroup2 and lets us."""
        root = cgroup_root()
        if root is None:
            return
        with contextlib.suppress(OSError):
            group = root / f"load-{self.process.pid}"
            group.mkdir()
            (group / "cgroup.procs").write_text(str(self.process.pid), encoding="ascii")

    def lines(self) -> list[dict[str, Any]]:
        """All that it printed by now, but for a line that is not whole yet."""
        text = self._out.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    def truths(self) -> dict[int, RankTruth]:
        """Return the truth that its ranks reported."""
        return truths(self.lines())

    def go(self) -> None:
        """Begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def await_steady(self, timeout: float) -> float:
        """Return the time when the last of its ranks became steady (CLOCK_MONOTONIC, s)."""
        end = time.monotonic() + timeout
        while True:
            known = self.truths()
            if len(known) == self.load.gpus:
                return max(truth.steady for truth in known.values())
            if time.monotonic() > end or self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise Failed(f"{self.name} did not become steady: {self.errors()}")

    def await_truth(self, until: float, timeout: float) -> None:
        """Wait until its ranks have said what they did up to a moment, but not for ever."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            known = self.truths().values()
            if all(t.open is not None or (t.spans and t.spans[-1].end >= until) for t in known):
                return
            time.sleep(0.05)

    def errors(self) -> str:
        """The end of what it complained of."""
        return self._errors.read_text(encoding="utf-8", errors="replace")[-1500:]

    def stop(self) -> None:
        """End it and all that it began."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self._room, ignore_errors=True)
