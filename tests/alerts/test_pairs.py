"""Two faults at once: both arrive, unless one hides the other by declaration."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from agent.config.settings import Settings
from alerts.build import alerts_of, groups
from alerts.routing import OF_ALL
from tests.stack.matrix import MATRIX, STATION
from tests.support import machines
from tests.support.alert_replay import firing, record, used
from tests.support.nightly import NIGHTLY

START = f"{STATION}:training+"
FAULTS = {
    name.removeprefix(START): alerts
    for name, alerts in MATRIX.items()
    if name.startswith(START) and "+" not in name.removeprefix(START) and alerts
    if "replays" not in name  # read once a minute, and judged over half of one here
}
SECONDS = 110
"""Some counters are read once a minute; the longest `for` is 20 s here."""

PLAIN = {("ecc-rising", "fan-failed"), ("disk-dead", "pages-near")}
ALERTS = alerts_of(groups(Settings()))
HIDES = {(fault.alert, by.alert) for fault in ALERTS for by in fault.hidden_by}
HIDES |= {(fault.alert, by.alert) for fault in ALERTS for by, _ in OF_ALL}
"""What is hidden, and by what."""


def pairs() -> list[Any]:
    return [
        pytest.param(one, other, marks=[] if {(one, other), (other, one)} & PLAIN else NIGHTLY)
        for one, other in combinations(sorted(FAULTS), 2)
    ]


@pytest.mark.promtool
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("one", "other"), pairs())
def test_both_arrive(one: str, other: str, tmp_path: Path) -> None:
    bench = machines.simulated(f"{START}{one}+{other}")
    series: dict[str, list[str]] = {"up": []}
    record(bench, SECONDS, series, used())
    found = firing(series, SECONDS - 2, tmp_path) - {"DgxWatchdog"}
    silent = (FAULTS[one] | FAULTS[other]) - found
    assert {a for a in silent if not any((a, by) in HIDES for by in found)} == set()
    strange = found - FAULTS[one] - FAULTS[other]
    assert {a for a in strange if not any((a, by) in HIDES for by in found)} == set()


def test_there_are_faults_to_pair() -> None:
    assert len(FAULTS) >= 5
    assert {name for pair in PLAIN for name in pair} <= FAULTS.keys()
