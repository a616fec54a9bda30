"""Confidence of a verdict, by the counts of trials."""

from pathlib import Path

import pytest

from agent.diagnosis.confidence import Likeness, Trials, similar, trials
from agent.diagnosis.evidence import SPINNING_POWER
from agent.diagnosis.facts import FactKind
from agent.diagnosis.inactive_share import doubts
from agent.model import BUSY, Cause, Metric, SignalQuality, State
from agent.sources import activity, power
from agent.status.words import fact_text
from tests.conftest import Committed
from tests.support.evidence import GPU, evidence
from tests.support.repository import ROOT


def test_the_counts_that_ship_are_counts() -> None:
    assert len(trials()) > 20
    for likeness, found in trials().items():
        assert 0 <= found.right <= found.of, likeness
        assert 0.0 <= found.both <= min(found.counted, found.true) + 0.11, likeness


def test_what_was_right_more_often_is_surer() -> None:
    assert Trials(9, 10, 0.0, 0.0, 0.0).confidence == pytest.approx(10 / 12)
    assert Trials(1, 10, 0.0, 0.0, 0.0).confidence == pytest.approx(2 / 12)


def test_what_was_never_tried_is_neither_sure_nor_doubtful() -> None:
    never = Likeness(SignalQuality.GPM, True, (State.THROTTLED, Cause.RELIABILITY))
    assert similar(never).confidence == 0.5
    assert not similar(never).is_doubtful


def test_a_busy_gpu_is_sure() -> None:
    assert similar(Likeness(SignalQuality.GPM, False, BUSY)).confidence > 0.9


@pytest.mark.parametrize(
    ("of", "counted", "both", "doubtful"),
    [(1, 60, 29, True), (1, 60, 31, False), (0, 29, 0, False)],
)
def test_most_of_the_seconds_decide(of: int, counted: float, both: float, doubtful: bool) -> None:
    assert Trials(0, of, counted, 0.0, both).is_doubtful is doubtful


README = ROOT / "agent/diagnosis/README.md"
BEGIN, END = "<!-- confidence.toml -->\n", "<!-- end -->"


def table() -> str:
    """The counts as a table: of each state and cause, with GPM and without."""
    rows = [
        "| state, cause | job of | signals | right | seconds counted | precision | recall |",
        "|---|---|---|---|---|---|---|",
    ]
    for (signals, several, (state, cause)), found in trials().items():
        name = state if cause is Cause.NONE else f"{state}, {cause}"
        precision = found.both / found.counted if found.counted else 0.0
        recall = f"{found.both / found.true:.2f}" if found.true else "none true"
        rows.append(
            f"| {name} | {'several GPUs' if several else 'one GPU'} | {signals} | "
            f"{found.right} of {found.of} | {found.counted:.0f} | {precision:.2f} | {recall} |"
        )
    return "".join(f"{row}\n" for row in rows)


def test_the_table_of_the_readme_is_that_of_the_counts(committed: Committed) -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    committed(Path(README), f"{before}{BEGIN}{table()}{END}{after}")


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
