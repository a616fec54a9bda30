"""Processes of traced loads, on GPUs of their own; needs NumPy."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.hardware.traced import play, truth
from tests.hardware.traced.marks import join_cgroup
from tests.support.repository import ROOT

Files = tuple[Path, list[Path]]
"""The marks of a rank, and its traces."""


def tracer(room: Path) -> Path:
    """The library that traces a process, compiled where no path to one is given."""
    given = os.environ.get("GPU_TRACE_LIBRARY")
    if given:
        return Path(given).resolve()
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    made = room / "gpu_trace.so"
    words = ["gcc", "-shared", "-fPIC", "-O2", f"-I{cuda}/include"]
    source = str(Path(__file__).with_name("gpu_trace.c"))
    subprocess.run([*words, source, f"-L{cuda}/lib64", "-lcupti", "-o", str(made)], check=True)
    return made


def cupti() -> str:
    """The folder of the CUPTI that PyTorch was installed with; empty where there is none."""
    found = [p for place in sys.path for p in Path(place).glob("nvidia/*/lib/libcupti.so.*")]
    return str(found[0].parent) if found else ""


class Rank:
    """One process of a load."""

    def __init__(self, name: str, gpu: int, rank: int, *, port: int, library: Path) -> None:
        self.gpu, self.rank = gpu, rank
        self._room = Path(tempfile.mkdtemp(prefix="traced-"))
        self.marks = self._room / "marks"
        found = play.load(name)
        others = [n for n in range(found.gpus) if n != gpu] if found.gpus > 1 else []
        environment = {
            **os.environ,
            **found.environment,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, [gpu, *others])),
            "CUDA_INJECTION64_PATH": str(library),
            "GPU_TRACE": str(self._room / "trace"),
            "LD_LIBRARY_PATH": f"{cupti()}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "TMPDIR": str(self._room),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(found.gpus),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        self._errors = self._room / "errors"
        words = [sys.executable, "-m", "tests.hardware.traced.play", name, "300", str(self.marks)]
        with open(self._errors, "ab") as errors:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                cwd=ROOT,
                start_new_session=True,
                env=environment,
            )
        join_cgroup(f"load-{port}", self.process.pid)
        words = [sys.executable, "-m", "tests.hardware.traced.blocked"]
        seen = str(truth.seen_blocked(self.marks))
        self._watch = subprocess.Popen([*words, str(self.process.pid), seen], cwd=ROOT)

    def go(self) -> None:
        """Begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def files(self) -> Files:
        """Return the files of the records that it has left by now."""
        return self.marks, sorted(self._room.glob("trace.[0-9]*"))

    def trace(self, *, on: bool) -> None:
        """Begin or end to record what the GPU does."""
        switch = self._room / "trace.on"
        switch.touch() if on else switch.unlink(missing_ok=True)

    def is_steady(self) -> bool:
        """Return whether its warm-up is over."""
        return truth.read(self.marks, []).steady is not None

    def errors(self) -> str:
        """The end of what it printed."""
        return self._errors.read_text(encoding="utf-8", errors="replace")[-1200:]

    def stop(self) -> None:
        """End it and all that it began; its files stay."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._watch.wait()

    def clear(self) -> None:
        """Remove its files."""
        shutil.rmtree(self._room, ignore_errors=True)


class Played:
    """One load on its GPUs."""

    def __init__(self, name: str, gpu: int, port: int, library: Path) -> None:
        self.name, self.load = name, play.load(name)
        rank = partial(Rank, port=port, library=library)
        self.ranks = [rank(name, gpu + n, n) for n in range(self.load.gpus)]

    def trace(self, *, on: bool) -> None:
        """Begin or end to record what the GPUs do."""
        for rank in self.ranks:
            rank.trace(on=on)

    def records_a_second(self, span: truth.Span) -> float:
        """Kernels and copies a second, of the rank with most."""
        time.sleep(0.1)
        records = [truth.read(*rank.files()) for rank in self.ranks]
        return max(one.records for one in truth.shares(records, *span))
