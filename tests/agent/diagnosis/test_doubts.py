"""Doubts: facts that a verdict could not see, or should not trust."""

import pytest

from agent.diagnosis.evidence import SPINNING_POWER
from agent.diagnosis.facts import FactKind
from agent.diagnosis.inactive_share import doubts
from agent.model import Metric
from agent.sources import activity, power
from agent.status.words import fact_text
from tests.support.evidence import GPU, evidence

SILENT: dict[tuple[Metric, tuple[str, ...]], float] = {
    (activity.ACTIVITY, GPU): 0.0,
    (activity.SM_ACTIVE, GPU): 0.0,
    (power.POWER_LIMIT, GPU): 700.0,
}


@pytest.mark.parametrize(("watts", "doubted"), [(641.0, True), (244.0, False), (90.0, False)])
def test_gpm_at_0_beside_power_is_a_doubt(watts: float, doubted: bool) -> None:
    found = list(doubts(evidence({**SILENT, (power.POWER, GPU): watts})))
    assert [fact.kind for fact in found] == [FactKind.GPM_AT_ZERO] * doubted
    assert all(fact.figures[0].limit == SPINNING_POWER for fact in found)
    assert all("GPM reads 0 % at 92 %" in fact_text(fact) for fact in found)


def test_so_is_utilization_at_0_where_there_is_no_gpm() -> None:
    without = {one: value for one, value in SILENT.items() if one[0] != activity.SM_ACTIVE}
    found = list(doubts(evidence({**without, (power.POWER, GPU): 651.0})))
    assert [fact.kind for fact in found] == [FactKind.WITHOUT_GPM, FactKind.GPM_AT_ZERO]
    assert fact_text(found[1]).startswith("utilization reads 0 % at 93 %")


def test_gpm_that_reads_anything_is_believed() -> None:
    busy = {**SILENT, (activity.ACTIVITY, GPU): 0.01, (power.POWER, GPU): 641.0}
    assert list(doubts(evidence(busy))) == []
