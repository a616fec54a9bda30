"""The true shares of a labelled load, from the lines that its clock prints."""

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.labelled_loads.labels import BUSY, HUNG, LABELS, NVLINK, PEER, UNKNOWN
from tests.hardware.labelled_loads.load import LabelledLoad
from tests.hardware.labelled_loads.table import LOADS
from tests.hardware.labelled_loads.truth import RankTruth, truths

PACKAGE = Path(__file__).parent / "hardware" / "labelled_loads"
WHO = {"rank": 0, "gpu": 3, "pid": 17}


def steady(at: float, *levels: tuple[str, float, float | None]) -> dict[str, Any]:
    return {"event": "steady", "at": at, "levels": [list(level) for level in levels], **WHO}


def steps(since: float, *phases: tuple[str, float], count: int = 1) -> dict[str, Any]:
    """So many steps of the same phases (label, s), end to end."""
    one = [(LABELS.index(label), round(s * 1e6)) for label, s in phases]
    ends = [len(one) * (step + 1) - 1 for step in range(count)]
    return {
        "event": "spans",
        "at": since,
        "since": since,
        "spans": one * count,
        "steps": ends,
        **WHO,
    }


def truth(*lines: dict[str, Any]) -> RankTruth:
    (found,) = truths(lines).values()
    return found


def test_shares_are_those_of_the_spans() -> None:
    found = truth(steady(100.0), steps(100.0, (BUSY, 0.15), (NVLINK, 0.05), count=10))
    assert found.shares(100.0, 102.0) == pytest.approx({BUSY: 0.75, NVLINK: 0.25})
    assert found.lengths(100.0, 102.5) == pytest.approx([0.2] * 9)
    assert (found.gpu, found.pid) == (3, 17)


def test_a_span_counts_as_far_as_it_lies_within() -> None:
    found = truth(steady(0.0), steps(0.0, (BUSY, 1.0), (PEER, 1.0)))
    assert found.shares(0.5, 1.25) == pytest.approx({BUSY: 2 / 3, PEER: 1 / 3})


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert truth(steady(0.0)).shares(0.0, 10.0) == {}


def test_levels_divide_the_busy_part_of_a_step() -> None:
    """0.10 s alone, 0.11 s with gradients exchanged; what is longer waits for the late rank."""
    levels = ((NVLINK, 0.10, 0.11), (PEER, 0.11, None))
    found = truth(steady(0.0, *levels), steps(0.0, (BUSY, 0.125), count=40))
    assert found.shares(0.0, 5.0) == pytest.approx({BUSY: 0.8, NVLINK: 0.08, PEER: 0.12})


def test_levels_leave_other_labels_alone() -> None:
    """The late rank itself sleeps for a known time, and needs no longer for the rest of a step."""
    found = truth(
        steady(0.0, (NVLINK, 0.10, 0.11)), steps(0.0, (UNKNOWN, 0.015), (BUSY, 0.11), count=40)
    )
    expected = {UNKNOWN: 0.12, BUSY: 0.8, NVLINK: 0.08}
    assert found.shares(0.0, 5.0) == pytest.approx(expected)


def test_a_step_that_is_shorter_than_a_level_loses_nothing() -> None:
    found = truth(steady(0.0, (NVLINK, 0.10, None)), steps(0.0, (BUSY, 0.09), count=20))
    assert found.shares(0.0, 1.8) == pytest.approx({BUSY: 1.0})


def test_what_is_open_lasts_until_somebody_says_otherwise() -> None:
    hung = {"event": "open", "at": 2.0, "label": HUNG, **WHO}
    lines = (steady(0.0), steps(0.0, (BUSY, 1.0), count=2), hung)
    assert truth(*lines).shares(0.0, 8.0) == pytest.approx({BUSY: 0.25, HUNG: 0.75})
    ended = truth(*lines, steps(2.0, (HUNG, 2.0), (BUSY, 4.0)))
    assert ended.shares(0.0, 8.0) == pytest.approx({BUSY: 0.75, HUNG: 0.25})


def function_of(load: LabelledLoad) -> ast.FunctionDef:
    module, _, name = load.function.rpartition(".")
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)


@pytest.mark.parametrize("load", LOADS.values(), ids=lambda load: load.name)
def test_a_load_fits_its_function(load: LabelledLoad) -> None:
    """PyTorch is not here: what would fail on the GPU machine alone is read from the source."""
    arguments = function_of(load).args
    known = {a.arg for a in arguments.kwonlyargs}
    required = {
        a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None
    }
    assert set(load.parameters) >= required
    assert arguments.kwarg or set(load.parameters) <= known
    first = ["rank", "seconds"] if load.gpus > 1 else ["seconds"]
    assert [a.arg for a in arguments.args] == first
