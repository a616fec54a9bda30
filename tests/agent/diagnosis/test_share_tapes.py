"""Shares and steps of labelled loads on H200s and H100s against what the loads' own clocks showed.

Most tapes are of loads that timed themselves, recorded before threads were read:
they hold the CPU time of whole processes, and schedstat of the threads that were followed then.
`two-h100-threads`, `-servers`, `-blind*`, `*-h100-frozen-*`, `two-h200-traced-*` are of
`tests.hardware.traced.trial` and hold all threads, at the moments at which they were listed then.
`python -m tests.hardware.share_replay tests/tapes/shares/NAME` prints each load. Every load whose
shares are right must stay within the bound of its signals; every other one stands in
`tests/tapes/shares/known_wrong.toml` with the reason and its largest error, and leaves that file
when it becomes right. What NCCL answered is on no tape. Labels are in the words of now: what a
launching thread prepares itself was `cpu` when eight of the older loads were played.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.share_comparison import WITHIN, Judged, TrueSpan
from tests.hardware.share_replay import replayed
from tests.support.nightly import NIGHTLY, shortly
from tests.support.repository import TAPES

CASES = tomllib.loads(Path(__file__).with_name("share_tapes.toml").read_text("utf-8"))

SHARES = TAPES / "shares"
KNOWN = tomllib.loads((SHARES / "known_wrong.toml").read_text())
WHY: Mapping[str, str] = KNOWN.pop("why")
KNOWN_WRONG: Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]] = {
    (tape, signals): loads for tape, each in KNOWN.items() for signals, loads in each.items()
}

MOST_WRONG_STEPS = CASES["most_wrong_steps"]
"""Loads whose step is off by more than 1 %."""

RIGHT_STEPS = CASES["right_steps"]
"""GPUs whose step is within 1 %. The other jobs with steps of 0.1 s or more show none: their pauses
are narrower than a sample of power, or gradients of equal batches are added up."""

FALSE_STEPS = {
    *("streamed-records", "checkpoint-rounds", "trajectory-writing", "starved-rank"),
    *("decoder-commands", "spectra-threads"),
}
"""Loads without regular steps of which some are shown: two connections bring two batches a period;
rounds with a checkpoint or a file each are nearly as long for a while; commands and threads that
prepare a batch each take nearly as long for some seconds."""

RIGHT_CAUSE = {"gpm": 0.92, "nvml": 0.39}
"""Least part of what each load within its bounds loses that has its true cause. Without GPM small
losses of a load that mostly communicates have others."""

SHORT = [("two-h200", "gpm"), ("one-h200-launching", "gpm")]
LONG = [pytest.param(*case, marks=pytest.mark.nightly) for case in KNOWN_WRONG if case not in SHORT]


@cache
def all_of(tape: str, signals: str) -> Sequence[Judged]:
    """Each load of a tape by the agent of now."""
    return tuple(replayed(SHARES / tape, signals))


def largest_errors(found: list[Judged]) -> Mapping[str, float]:
    """Of each load the error of the GPU that is off most, if that is out of bounds."""
    errors: dict[str, float] = {}
    for one in found:
        if not one.is_within:
            errors[one.span.load] = max(one.error, errors.get(one.span.load, 0.0))
    return errors


def test_an_error_is_measured_from_what_may_be_true() -> None:
    doubts = {"starved/host_thread": (0.2, 0.0), "starved/cpu": (0.0, 0.2)}
    span = TrueSpan("lock", 0, 0.0, 9.0, {"busy": 0.5, "starved/host_thread": 0.5}, doubts=doubts)
    found = Judged(span, "gpm", {"busy": 0.5, "starved/host_thread": 0.28, "starved/cpu": 0.22})
    assert (found.error, found.error_beyond_doubt) == pytest.approx((0.22, 0.02))


@pytest.mark.parametrize(("tape", "signals"), [*SHORT, *LONG])
def test_shares_are_right_but_for_what_is_known_to_be_wrong(tape: str, signals: str) -> None:
    found = list(all_of(tape, signals))
    errors, known = largest_errors(found), KNOWN_WRONG[tape, signals]
    lines = "\n".join(str(one) for one in found if not one.is_within)
    assert sorted(errors) == sorted(known), lines
    assert all(error <= known[load]["most"] for load, error in errors.items()), lines
    assert all(wrong["most"] > WITHIN[signals] for wrong in known.values())
    rights = {str(one): one.right_cause for one in found if one.is_within}
    causes = {name: share for name, share in rights.items() if share is not None}
    assert {text for text, part in causes.items() if part < RIGHT_CAUSE[signals]} == set()
    hung = {one.span.load for one in found if one.shares.get("hung", 0.0) > 0.0}
    assert hung == {one.span.load for one in found if one.span.shares.get("hung", 0.0) > 0.0}


def test_each_wrong_load_has_a_reason() -> None:
    named = {wrong["why"] for loads in KNOWN_WRONG.values() for wrong in loads.values()}
    assert named == WHY.keys()


@pytest.mark.parametrize("tape", shortly(RIGHT_STEPS, ("two-h200",)))
def test_steps_are_right_but_for_what_is_known_to_be_wrong(tape: str) -> None:
    found = all_of(tape, "gpm")
    steps = [(one.span.load, one.step_error) for one in found if one.step_error is not None]
    assert sum(abs(error) <= 0.01 for _, error in steps) == RIGHT_STEPS[tape]
    assert {load for load, error in steps if abs(error) > 0.01} == {*MOST_WRONG_STEPS.get(tape, ())}
    assert {one.span.load for one in found if one.steps and one.span.step is None} <= FALSE_STEPS


def test_a_load_that_is_wrong_and_not_known_to_be_is_found_out() -> None:
    (one, *_) = (one for one in all_of("one-h200-launching", "gpm") if one.is_within)
    assert largest_errors([one]) == {}
    off = replace(one, shares={"busy": 0.5, "idle": 0.5})
    assert largest_errors([one, off]).keys() == {one.span.load}


@NIGHTLY
def test_no_load_that_receives_nothing_waits_for_requests() -> None:
    """Among them three servers that ask themselves, and a notebook."""
    for one in all_of("one-h200-irregular", "gpm"):
        assert one.shares.get("idle/requests", 0.0) < 0.01, one.span.load
        if one.span.load.endswith("-server"):
            assert one.shares["busy"] == pytest.approx(one.span.shares["busy"], abs=0.03)
