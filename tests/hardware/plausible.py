"""Nothing became absent that was there: this tree beside an older one, on a real GPU under load.

`python -m tests.hardware.plausible [OLDER_TREE]`: under matrix products on every GPU, run
`once --json` and `check --json` of this tree, and of the older one where its directory is given.
Prints a line of JSON: the series that the older tree has and this one has not, each with the reason
where it is absent; every value that is absent as implausible; how many series each tree has. Exit
status 1 where any is missing or implausible. Takes less than a minute. Without a GPU and PyTorch
`DGX_PLAUSIBLE_ON=SYSTEM` asks a simulated one, which tries this script out.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.hardware.bench import running
from tests.support.repository import ROOT

SIMULATED = os.environ.get("DGX_PLAUSIBLE_ON", "")
WARM_UP, LOAD, LONGEST = 6.0, 50.0, 20.0  # s
COMMANDS = ("once", "check")

COMES_AND_GOES = ("pid", "name", "job_id", "user", "waits_for", "cause", "state")
"""Labels of what is another thing at each look: processes, jobs, verdicts."""

PASSING = (
    "dgx_gpu_step",
    "dgx_gpu_job",
    "dgx_job",
    "dgx_gpu_process_",
    "dgx_agent_absent",
    "dgx_workload_",
)
"""Beginnings of metrics that a job must run for a while to have."""

Series = tuple[str, ...]


def document(tree: Path, command: str) -> Any:
    """Return the JSON output of a tree's command."""
    words = [sys.executable, "-m", "agent", command, "--json"]
    words += ["--simulate", SIMULATED] if SIMULATED else []
    ended = subprocess.run(
        words, cwd=tree, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    if not ended.stdout.strip():
        raise SystemExit(f"{tree}: {command} printed nothing: {ended.stderr[-400:]}")
    return json.loads(ended.stdout)


def parts(whole: Any) -> Iterator[tuple[str, Any]]:
    """Values and absences of each GPU by its UUID, and of the host."""
    for gpu in whole.get("gpus", ()):
        yield gpu["uuid"], gpu
    absent: dict[str, list[Any]] = {}
    for one in whole.get("absent", ()):
        absent.setdefault(one["metric"], []).append(one)
    yield "host", {"values": whole.get("host", {}), "absent": absent}


def entries(part: dict[str, Any], of: str) -> Iterator[tuple[str, Series, Any]]:
    """Metric, labels and content of all that is in a part."""
    for metric, content in part.get(of, {}).items():
        for one in content if isinstance(content, list) else [content]:
            facts = one if isinstance(one, dict) else {}
            labels = {k: v for k, v in facts.items() if isinstance(v, str)}
            beside = {"value", "metric", "reason", "detail", *COMES_AND_GOES}
            yield metric, tuple(f"{k}={labels[k]}" for k in sorted(labels.keys() - beside)), one


def series(whole: Any, of: str) -> dict[Series, Any]:
    return {
        (device, metric, *labels): one
        for device, part in parts(whole)
        for metric, labels, one in entries(part, of)
        if not metric.startswith(PASSING)
    }


def compared(command: str, older: Path | None) -> dict[str, Any]:
    """Return the output of one command in both trees."""
    now = document(ROOT, command)
    values, absent = series(now, "values"), series(now, "absent")
    odd = {" ".join(k): v for k, v in absent.items() if "implausible" in json.dumps(v)}
    found: dict[str, Any] = {"command": command, "series": len(values), "implausible": odd}
    if older is not None:
        before = series(document(older, command), "values")
        gone = sorted(before.keys() - values.keys())
        found |= {"older": len(before), "new": len(values.keys() - before.keys())}
        found["missing"] = {" ".join(key): absent.get(key[:2], "no word of it") for key in gone}
    return found


def main(older: Path | None) -> int:
    """Print the comparison of each command; 1 where something is missing or implausible."""
    began, wrong = time.monotonic(), False
    with ExitStack() as stack:
        if not SIMULATED:
            stack.enter_context(running("matrices", LOAD))
            time.sleep(WARM_UP)
        for command in COMMANDS:
            found = compared(command, older)
            wrong = wrong or bool(found["implausible"] or found.get("missing"))
            print(json.dumps(found), flush=True)
    print(json.dumps({"seconds": round(time.monotonic() - began, 1), "ok": not wrong}))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None))
