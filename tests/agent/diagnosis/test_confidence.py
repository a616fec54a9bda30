"""Confidence of a verdict, by the counts of trials."""

from pathlib import Path

import pytest

from agent.diagnosis.confidence import Likeness, Trials, similar, trials
from agent.model import BUSY, Cause, SignalQuality, State
from tests.conftest import Committed
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
