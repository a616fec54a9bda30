"""`python -m tests.hardware.tensor_trial --out DIR`: tensor throughput against known FLOP.

Dense products of five types and seven shapes, GPT-2 and ResNet-50, one after the other, each in a
process of its own (tensor_loads.py, PyTorch of DGX_TORCH_PYTHON). `DIR/tensor.json` gets each with
its FLOP a second over the peak at the highest clock, and what the agent reports. `--simulate`
watches a simulated H100 instead, whose load has no FLOP.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agent.config.settings import Settings
from agent.config.whole_file import write_whole
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

WARM, WATCHED = 8.0, 20.0


class Row(NamedTuple):
    """One load: FLOP a second over the peak (None where none are known), and what is reported."""

    load: str
    true: float | None
    reported: float | None
    why: str = ""


def reported(watcher: Watcher, seconds: float) -> tuple[float, float, float]:
    """Mean throughput of GPU 0 over the next seconds, and when that began and ended."""
    begun = watcher.clock.monotonic()
    watcher.ticks(seconds)
    end = watcher.clock.monotonic()
    return watcher.rate(activity.TENSOR_SECONDS, "0", begun, end), begun, end


def measured(name: str, watcher: Watcher, sms: int) -> Row:
    """One load beside the agent."""
    load = Load(name, WARM + WATCHED + 10.0, module="tensor_loads")
    try:
        load.wait_started()
        watcher.ticks(WARM)
        ratio, begun, end = reported(watcher, WATCHED)
        lines = [Point(line["at"], line["flop"]) for line in list(load.lines)]
    except RuntimeError as error:  # a type or shape that this library refuses
        return Row(name, None, None, str(error))
    finally:
        load.stop()
    highest = watcher.points(clocks.CLOCK_LIMIT, "0", "sm")[-1].value
    rate = slope([point for point in lines if begun <= point.at <= end])
    return Row(name, rate / (PER_CLOCK[CASES[name]] * sms * highest), ratio)


def main(arguments: Sequence[str]) -> int:
    """Run every load, print a line for each, write them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument("--sms", type=int, default=132, help="multiprocessors of the GPU")
    parser.add_argument("--simulate", action="store_true")
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    if given.simulate:
        bench = simulated("dgx-h100:training", gpus=1).run(15)
        before, at = bench.samples.all(activity.TENSOR_SECONDS), bench.clock.monotonic()
        after = bench.run(int(WATCHED)).samples.all(activity.TENSOR_SECONDS)
        passed = bench.clock.monotonic() - at
        rows += [Row("simulated", None, (after[gpu] - before[gpu]) / passed) for gpu in before]
    else:
        watcher = Watcher(config=Settings())
        for name in (name for name in CASES if given.only in name):
            rows.append(measured(name, watcher, given.sms))
            print(rows[-1], flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps([row._asdict() for row in rows], indent=2)
    write_whole(given.out / "tensor.json", text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
