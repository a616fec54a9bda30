"""Duration of `report` over a week of a fleet: `python -m tests.benchmarks.report [NODES DAYS]`.

What the rules of `deploy/prometheus/dgx-report.yaml` record is written into a real Prometheus for
each five minutes: a node works on one job after the other, six states and causes at a time.
"""

import contextlib
import io
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agent.cli.parser import run_command
from tests.support.prometheus import Prometheus

STEP, JOB_STEPS, GPUS = 300.0, 144, 8
SECONDS = "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m"
JOULES = "instance_job_id:dgx_gpu_energy_joules:increase5m"
PAIRS = (
    *(("busy", "none"), ("idle", "none"), ("starved", "disk"), ("starved", "cpu")),
    *(("communicating", "nvlink"), ("starved", "peer")),
)


def lines(metric: str, node: int, steps: int, now: float) -> Iterator[str]:
    """The recorded values of one node, oldest first."""
    dice, start = random.Random(node), now - steps * STEP
    for number in range(steps):
        job = node * 10_000 + number // JOB_STEPS
        names = f'job_id="{job}",user="user{job % 40}",partition="long",account="lab{job % 9}"'
        labels = f'instance="node{node:04}",job="dgx-telemetry",{names}'
        at = f"{start + number * STEP:.0f}"
        if metric == JOULES:
            yield f"{metric}{{{labels}}} {GPUS * STEP * 500:.1f} {at}"
            continue
        parts = [dice.random() for _ in PAIRS]
        for (state, cause), part in zip(PAIRS, parts, strict=True):
            value = GPUS * STEP * part / sum(parts)
            yield f'{metric}{{{labels},state="{state}",cause="{cause}"}} {value:.3f} {at}'


def main(nodes: int, days: float) -> None:
    steps, now = int(days * 86_400 / STEP), math.floor(time.time() / STEP) * STEP - STEP
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "samples")
        with whole.open("w") as out:
            for metric in (SECONDS, JOULES):
                out.write(f"# TYPE {metric} gauge\n")
                for node in range(nodes):
                    out.writelines(f"{line}\n" for line in lines(metric, node, steps, now))
            out.write("# EOF\n")
        database = Prometheus(Path(folder, "prometheus"), {}, [], lookback="5m")
        database.backfill(whole)
        with database:
            for by in ("node", "user", "account", "job"):
                words = ["report", "--prometheus", database.address, f"--since={days:g}d"]
                shown, start = io.StringIO(), time.monotonic()
                with contextlib.redirect_stdout(shown):
                    status = run_command([*words, "--by", by, "--json"])
                took = time.monotonic() - start
                rows = json.loads(shown.getvalue())["rows"] if status == 0 else []
                hours = sum(sum(row["gpu_hours_by_state"].values()) for row in rows)
                print(
                    f"by {by:8} {took:6.2f} s, {len(rows)} rows, {hours:.0f} GPU-hours", flush=True
                )


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else 124, float(given[1]) if len(given) > 1 else 7.0)
