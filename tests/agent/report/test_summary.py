"""The sentences of a report, for readers who read no table, and the goodput of its GPU-hours."""

import pytest

from agent.model import Cause, State
from agent.report.gpu_time import GpuTime, ordered, summary, together
from tests.agent.report.test_report import BUSY, DISK, IDLE, REPORT, ROWS


def test_a_report_begins_with_what_matters() -> None:
    held = GpuTime("n2", {(State.HELD, Cause.NONE): 3600.0, IDLE: 3600.0}, unassigned=True)
    report = REPORT._replace(
        by="node", rows=tuple(row.at(2.0) for row in ordered((*ROWS[:2], held)))
    )
    given, lost, first, kept = summary(report)
    assert given == (
        "5.00 of 6.00 GPU-hours were given to jobs; in 2.50 of these (50 %) the GPUs worked; "
        "1.00 GPU-hours (2.00 EUR) had no job."
    )
    assert lost == (
        "Lost: 2.50 GPU-hours (5.00 EUR), 42 % of all: starved by disk 1.50 (3.00 EUR), occupied "
        "by an idle process 1.00 (2.00 EUR)."
    )
    assert kept == (
        "Next to reclaim: 1.00 GPU-hours (2.00 EUR) of the lost, held without work; most by node "
        "n2: 1.00."
    )
    hung = GpuTime("n3", {(State.HUNG, Cause.NONE): 1800.0})
    *_, most = summary(report._replace(rows=ordered((*report.rows, hung))))
    assert most == "Largest share: node n3 lost 0.50 of its 0.50 GPU-hours."
    assert first.startswith(
        "First to look at: node =bad<b>, which lost most: starved by disk for 1.50 GPU-hours "
    )
    assert list(summary(REPORT._replace(rows=ordered(ROWS[:1]))))[1:] == ["No time was lost."]


@pytest.mark.parametrize(
    ("before", "told"),
    [(0.248, "as"), (0.252, "as"), (0.2, "worse than 20 %"), (0.3, "better than 30 %")],
)
def test_the_span_before_is_compared_as_it_is_printed(before: float, told: str) -> None:
    """ROWS lose a quarter."""
    assert f"25 % of all ({told} in the same span before)" in " ".join(
        summary(REPORT._replace(before=before))
    )


@pytest.mark.parametrize(
    ("unassigned", "text"),
    [
        (True, "of 2.00 GPU-hours given, 1.00 worked, at 50 % of the tensor peak"),
        (False, "of 4.00 GPU-hours given, 1.00 worked, at 50 % of the tensor peak"),
    ],
)
def test_a_node_gave_the_hours_with_a_process(unassigned: bool, text: str) -> None:
    seconds = {BUSY: 3600.0, DISK: 3600.0, IDLE: 7200.0}
    row = GpuTime("n1", seconds, tensor=1800.0, unassigned=unassigned)
    assert str(row.goodput) == text
    assert str(row._replace(tensor=None).goodput) == text.partition(", at")[0]
    assert str(together([row, row])).startswith("of 4" if unassigned else "of 8")
    unknown = row._replace(tensor=None)
    assert together([row, unknown, unknown]).of_peak == 0.5, "of the work with a known throughput"
