"""Lines that the tests run, by slipcover: it takes its probes out of lines that were seen, so that
it costs little where coverage.py would double the time (Python 3.11 has no sys.monitoring).

A plugin for `PYTEST_PLUGINS=tests.support.covered`, which is early enough for modules that conftest
imports, and in each worker of xdist; what each process saw goes to DGX_COVERAGE, a folder.
`python -m tests.support.covered` then prints it by room.
"""

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import slipcover

from tests.support.repository import ROOT

ROOMS = ("agent", "alerts", "dashboards", "exporters")
FOLDER = Path(os.environ.get("DGX_COVERAGE", ROOT / ".venv/coverage"))

CONTROLLER = "-n" in sys.argv and "PYTEST_XDIST_WORKER" not in os.environ
"""The process that hands tests out to others; it runs none, and probes take seconds to put in."""

Coverage = dict[str, Any]


class SeenLines:
    """The probes of this process."""

    def __init__(self) -> None:
        sources = [str(ROOT / room) for room in ROOMS]
        matcher = slipcover.FileMatcher(sources=sources)
        self.probes = slipcover.Slipcover(source=sources)
        slipcover.ImportManager(self.probes, matcher).__enter__()

    def pytest_unconfigure(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{os.getpid()}.json").write_text(json.dumps(self.probes.get_coverage()))


def merged(reports: list[Path]) -> Coverage:
    """Lines that any of these processes saw."""
    first, *rest = [json.loads(report.read_text()) for report in reports]
    for other in rest:
        slipcover.merge_coverage(first, other)
    return dict(first)


def table(coverage: Coverage) -> list[str]:
    """One line a room, and one for all."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, file in coverage["files"].items():
        folder = Path(name).parent.as_posix()
        for room in (folder, "all"):
            counts[room][0] += len(file["executed_lines"])
            counts[room][1] += len(file["executed_lines"]) + len(file["missing_lines"])
    rooms = sorted(counts.keys() - {"all"})
    return [
        f"  {room:24}{seen:6} of {lines:6} lines {100 * seen / lines:5.1f} %"
        for room in (*rooms, "all")
        for seen, lines in (counts[room],)
        if lines
    ]


def pytest_configure(config: pytest.Config) -> None:
    if not CONTROLLER:
        config.pluginmanager.register(SEEN)


if __name__ == "__main__":
    print("\n".join(table(merged(sorted(FOLDER.glob("*.json"))))))
elif not CONTROLLER:
    SEEN = SeenLines()
