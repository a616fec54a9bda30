"""`python -m tests.hardware [PART ...]`: ask the real GPUs of this machine and print the figures.

Parts: the names in PARTS below; without any, all that this machine can have. Tapes of the loads are
written below the directory in DGX_TAPES, where it is set.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.cli.assembly import real_hardware, recorded
from agent.sources import activity
from tests.hardware import brackets, saturation, traffic
from tests.hardware.bench import Figure, MachineClock, Watcher, running


def _taped(part: Callable[[Watcher], Iterator[Figure]], name: str) -> Iterator[Figure]:
    """A part on an agent whose hardware is recorded; the tape is kept where DGX_TAPES says."""
    directory = os.environ.get("DGX_TAPES")
    if not directory:
        yield from part(_warm())
        return
    hardware, recorder = recorded(real_hardware(), MachineClock())
    watcher = Watcher(hardware)
    watcher.ticks(2.5)
    yield from part(watcher)
    recorder.write(Path(directory) / f"{name}.tape")


def _idle(watcher: Watcher) -> Iterator[Figure]:
    watcher.ticks(12)
    busy = max(
        p.value
        for (n, _), points in watcher.series.items()
        for p in points
        if n == "dgx_gpu_activity_ratio"
    )
    yield Figure("activity while idle", busy, 0.0, 0.02, "")


def _matrices(watcher: Watcher) -> Iterator[Figure]:
    with running("matrices", 40):
        watcher.ticks(15)
        means = [
            watcher.mean(
                activity.ACTIVITY,
                str(i.index),
                watcher.clock.monotonic() - 8,
                watcher.clock.monotonic(),
            )
            for i in watcher.agent.gpus.inventory.gpus
        ]
    yield Figure("least activity under matrix products", min(means), 0.9, 1.0, "")


PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "idle": lambda: _taped(_idle, "idle"),
    "bracket": lambda: brackets.measure(Watcher()),
    "copies": lambda: _taped(traffic.copies, "copies"),
    "unit": lambda: _taped(traffic.gpm_unit, "unit"),
    "energy": lambda: traffic.energy(_warm()),
    "matrices": lambda: _taped(_matrices, "matrices"),
    "links": lambda: _taped(traffic.all_reduce, "all-reduce"),
    "sum": lambda: traffic.link_sum(_warm()),
    "saturation": lambda: _taped(saturation.nvlink, "saturation"),
    "pcie-saturation": lambda: _taped(saturation.pcie, "pcie-saturation"),
}


def _warm() -> Watcher:
    watcher = Watcher()
    watcher.ticks(2.5)
    return watcher


def main(parts: list[str]) -> int:
    """Print a line a figure; 1 if one is out of its bounds or a part could not be run."""
    wrong = 0
    for name in parts or PARTS:
        print(f"== {name}", flush=True)
        try:
            for figure in PARTS[name]():
                print(figure, flush=True)
                wrong += not figure.holds
        except Exception:
            traceback.print_exc()
            wrong += 1
    print(f"{wrong} figures out of their bounds")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
