"""Shares and steps of labelled loads on H200s and H100s against what the loads' own clocks told.

The tapes are of `python -m tests.hardware.share_trials --tape`. Told by the rules of now; what each
load was told is printed by `python -m tests.hardware.share_replay tests/tapes/shares/NAME`. Of two
hangs a tape tells less than the machine did: NCCL, which was asked there, is not on it.
"""

from typing import NamedTuple

import pytest

from tests.hardware.share_comparison import Told
from tests.hardware.share_replay import replayed
from tests.support.repository import TAPES

SHARES = TAPES / "shares"


class Reached(NamedTuple):
    """What was reached: GPUs within the bound of their signals, and steps within 1 %."""

    gpus: int
    steps: int
    wrong_steps: int  # GPUs whose step is off by more
    right_cause: float  # of what was told as lost


REACHED = {
    ("two-h200", "gpm"): Reached(42, 13, 2, 0.90),
    ("two-h200", "nvml"): Reached(34, 13, 2, 0.88),
    ("two-h200-blind", "gpm"): Reached(35, 6, 1, 0.91),
    ("two-h200-blind", "nvml"): Reached(29, 6, 1, 0.89),
    ("two-h200-third", "gpm"): Reached(27, 6, 1, 0.79),
    ("two-h200-third", "nvml"): Reached(27, 6, 1, 0.84),
    ("two-h100", "gpm"): Reached(35, 8, 0, 0.83),
    ("two-h100", "nvml"): Reached(32, 8, 0, 0.85),
    ("two-h100-rest", "gpm"): Reached(10, 3, 0, 0.32),
    ("two-h100-rest", "nvml"): Reached(7, 3, 0, 0.21),
    ("one-h200-fourth", "gpm"): Reached(16, 2, 0, 0.91),
    ("one-h200-fourth", "nvml"): Reached(17, 2, 0, 0.91),
    ("one-h200-launching", "gpm"): Reached(3, 0, 0, 1.0),
    ("one-h200-launching", "nvml"): Reached(5, 0, 0, 1.0),
    ("one-h200-fifth", "gpm"): Reached(12, 2, 0, 0.88),
    ("one-h200-fifth", "nvml"): Reached(13, 2, 0, 0.88),
    ("one-h200-first", "gpm"): Reached(13, 2, 0, 0.99),
    ("one-h200-first", "nvml"): Reached(14, 2, 0, 0.99),
}
"""Wrong steps: those of two GPUs are right between two checkpoints, and their mean is not; one of
four equal batches that are accumulated; one that pageable copies make longer and shorter for
seconds. Of 46 GPUs under 30 loads that the rules were made with, of 40 under 27 and of 36 under 27
that were played blind, as were 19 on one GPU; some rules were changed after each. Of the five that
launch small kernels one by one, two keep their GPU always active. The fifth set was played blind
last of all. The last are those of the 30 that need one GPU, played anew. On two H100 the first
loads were played again, after all of this: six GPUs of sixteen under the loads that came last hang
or are sharded, and what is lost there has few other causes."""

FALSE_STEPS = {"streamed-records", "checkpoint-rounds", "trajectory-writing"}
"""Two connections bring two batches a period; rounds with a checkpoint or a file each, written to
the disk, are nearly as long for a while (one and two ticks)."""

WAITS = "starved-rank"
"""Without GPM a rank that waits looks active."""

SHORT = [case for case in REACHED if case in {("two-h200", "gpm"), ("one-h200-launching", "gpm")}]
LONG = [pytest.param(*case, marks=pytest.mark.nightly) for case in REACHED if case not in SHORT]


@pytest.mark.parametrize(("tape", "signals"), [*SHORT, *LONG])
def test_shares_are_as_near_to_the_truth_as_they_were(tape: str, signals: str) -> None:
    found: list[Told] = list(replayed(SHARES / tape, signals))
    reached = REACHED[tape, signals]
    off = "\n".join(str(told) for told in found if not told.is_within)
    assert sum(told.is_within for told in found) >= reached.gpus, off
    steps = [told.step_error for told in found if told.step_error is not None]
    right = sum(abs(error) <= 0.01 for error in steps)
    assert right >= reached.steps
    assert len(steps) - right <= reached.wrong_steps
    false = {told.span.load for told in found if told.steps and told.span.step is None}
    assert false <= FALSE_STEPS | ({WAITS} if signals == "nvml" else set())
    causes = [told.right_cause for told in found if told.right_cause is not None]
    assert sum(causes) / len(causes) >= reached.right_cause
    hung = {told.span.load for told in found if told.shares.get("hung", 0.0) > 0.0}
    assert hung == {told.span.load for told in found if told.span.shares.get("hung", 0.0) > 0.0}


class StepsTold(NamedTuple):
    """Jobs of one GPU with steps of 0.1 to 5 s: how many there are, and how many steps are told
    within 1 %; how many of any job are wrong; seconds of steps told where there are none."""

    jobs: int
    right: int
    wrong: int
    irregular: int


STEPS_TOLD = {
    "one-h200-again": StepsTold(8, 6, 1, 0),
    "one-h200-steps": StepsTold(10, 7, 0, 0),
    "one-h200-irregular": StepsTold(0, 0, 0, 0),
    "one-h200-limit": StepsTold(5, 0, 0, 0),
}
"""The first was played after the rules were frozen: 1.01 % off is a job whose steps became shorter
while they were watched. Of the second three have steps that power does not show: gradients of
equal batches that are added up, and moves of bodies that are all alike. The third is ten loads of
irregular work, 53 s each. Of the last, three are held at the limit of their power, whose control
has a rhythm of its own, and two have steps that power hardly shows."""


@pytest.mark.parametrize("tape", STEPS_TOLD)
def test_steps_are_told_rightly_or_not_at_all(tape: str) -> None:
    found = list(replayed(SHARES / tape, "gpm"))
    lines = "\n".join(map(str, found))
    jobs = [told for told in found if told.span.step and told.span.step >= 0.1]
    wrong = [t for t in found if t.step_error is not None and abs(t.step_error) > 0.01]
    right = [t for t in jobs if t.step_error is not None and t not in wrong]
    irregular = sum(len(told.steps) for told in found if told.span.step is None)
    told = StepsTold(len(jobs), len(right), len(wrong), irregular)
    reached = STEPS_TOLD[tape]
    assert told.jobs == reached.jobs
    assert told.right >= reached.right, lines
    assert told.wrong <= reached.wrong, lines
    assert told.irregular <= reached.irregular, lines
