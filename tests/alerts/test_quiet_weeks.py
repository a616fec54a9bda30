"""The short form of years of healthy nodes: days without a page, and what is wrong is seen."""

import pytest

from tests.benchmarks import quiet_node, quiet_years
from tests.support.nightly import NIGHTLY

pytestmark = [pytest.mark.stack, pytest.mark.victoria]

SYSTEMS = ("gtx-1080", "dgx-station-v100")


@pytest.mark.parametrize(
    ("days", "check", "systems"),
    [(0.5, 0.1, SYSTEMS[1:]), pytest.param(7.0, 1.0, SYSTEMS, marks=NIGHTLY)],
)
def test_healthy_days_bring_no_page(days: float, check: float, systems: tuple[str, ...]) -> None:
    """Nor does Prometheus judge the first hours otherwise: new nodes have a short past. A day takes
    promtool 25 s of a processor."""
    assert quiet_years.judge(days, systems, seed=1, check=check) == (0, 0)


def test_what_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is awake: jobs that wait for the disk half of the time bring pages."""
    monkeypatch.setattr(quiet_node, "BUSY", {"busy/none": 0.5, "starved/disk": 0.5})
    monkeypatch.setattr(quiet_node, "SHORT_LOAD", {"starved/disk": 1.0})
    pages, _ = quiet_years.judge(1.0, SYSTEMS[:1], seed=7, check=0.0)
    assert pages > 0
