"""How sure a verdict is, by the counts of trials."""

import pytest

from agent.diagnosis.confidence import Likeness, Trials, confidence, is_doubtful, trials
from agent.model import BUSY, Cause, SignalQuality, State


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
    assert confidence(never) == 0.5
    assert not is_doubtful(never)


def test_a_busy_gpu_is_sure() -> None:
    assert confidence(Likeness(SignalQuality.GPM, False, BUSY)) > 0.9


@pytest.mark.parametrize(
    ("counted", "both", "doubtful"), [(60, 29, True), (60, 31, False), (29, 0, False)]
)
def test_most_of_the_seconds_decide(counted: float, both: float, doubtful: bool) -> None:
    assert Trials(0, 0, counted, 0.0, both).is_doubtful is doubtful
