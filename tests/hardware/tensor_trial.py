"""`python -m tests.hardware.tensor_trial --out DIR`: tensor throughput against known FLOP.

Dense products of five types and seven shapes, GPT-2 and ResNet-50, one after the other
(tensor_loads.py, PyTorch of DGX_TORCH_PYTHON). `DIR/tensor.json` gets each with
its FLOP a second over the peak at the highest clock, and what the agent reports. `--simulate`
watches a simulated H100 instead, whose load has no FLOP.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.config.atomic_file import atomic_write
from agent.config.settings import Settings
from agent.sources import activity, clocks
from tests.hardware.bench import Load, Point, Watcher, slope
from tests.support.machines import simulated

PER_CLOCK = {"tf32": 2048, "bf16": 4096, "fp16": 4096, "fp8": 8192, "int8": 8192}
"""Operations of one SM of Hopper in a cycle (H100 white paper: dense)."""

SHAPES = (
    *("8192x8192x8192", "16384x5120x13824", "4096x4096x4096", "2048x2048x2048"),
    *("8192x1024x8192", "512x8192x8192", "1024x3072x768"),
)
CASES = {f"{kind}-{shape}": kind for kind in PER_CLOCK for shape in SHAPES}
CASES |= {"gpt": "bf16", "resnet": "bf16"}
"""Loads, with the type of their tensor work."""

WARM = 3
"""The first third of a load does not count: the board's clock falls as it warms."""


class Row(NamedTuple):
    """One load: FLOP a second over the peak (None where none are known), and what is reported."""

    load: str
    true: float | None
    reported: float | None
    why: str = ""


def measured(names: Sequence[str], gpu: int, load: Load, watcher: Watcher, sms: int) -> list[Row]:
    """Return the reports on one GPU while its loads ran."""
    highest = watcher.points(clocks.CLOCK_LIMIT, str(gpu), "sm")[-1].value
    rows = []
    for case, name in enumerate(names):
        lines = [one for one in load.lines if one["case"] == case and "flop" in one]
        if len(lines) < 3:
            rows.append(Row(name, None, None, "refused, or no time was left"))
            continue
        since, until = lines[0]["at"], lines[-1]["at"]
        since += (until - since) / WARM
        rate = slope([Point(one["at"], one["flop"]) for one in lines if one["at"] >= since])
        ratio = watcher.rate(activity.TENSOR_SECONDS, str(gpu), since, until)
        rows.append(Row(name, rate / (PER_CLOCK[CASES[name]] * sms * highest), ratio))
    return rows


def played(names: Sequence[str], gpus: int, sms: int, each: float) -> Iterator[Row]:
    """Play the loads, divided among the GPUs, beside the agent."""
    watcher = Watcher(config=Settings())
    parts = [names[gpu::gpus] for gpu in range(gpus)]
    words = [(",".join(part), str(gpu)) for gpu, part in enumerate(parts)]
    loads = [Load(part, each, gpu, module="tensor_loads") for part, gpu in words]
    try:
        while not all(load.ended for load in loads):
            watcher.ticks(2.0)
    finally:
        for load in loads:
            load.stop()
    for gpu, (part, load) in enumerate(zip(parts, loads, strict=True)):
        yield from measured(part, gpu, load, watcher, sms)


def main(arguments: Sequence[str]) -> int:
    """Run every load, print a line for each, write them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument("--gpus", type=int, default=1, help="among which they are divided")
    parser.add_argument("--sms", type=int, default=132, help="multiprocessors of the GPU")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--simulate", action="store_true")
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    if given.simulate:
        bench = simulated("dgx-h100:training", gpus=1).run(15)
        before, at = bench.samples.all(activity.TENSOR_SECONDS), bench.clock.monotonic()
        after = bench.run(20).samples.all(activity.TENSOR_SECONDS)
        passed = bench.clock.monotonic() - at
        rows += [Row("simulated", None, (after[gpu] - before[gpu]) / passed) for gpu in before]
    else:
        for row in played(
            [n for n in CASES if given.only in n], given.gpus, given.sms, given.seconds
        ):
            print(row, flush=True)
            rows.append(row)
    given.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps([row._asdict() for row in rows], indent=2)
    atomic_write(given.out / "tensor.json", text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
