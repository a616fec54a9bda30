"""Questions to Slurm and the kubelet that break, or are not answered."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from agent.model import Reading, Reason
from agent.polling.reads import ReadCosts, is_due, perform
from agent.sources.allocation import EXPIRED
from tests.agent.jobs.test_allocation import GRES, SHOWN, AllocationTree

T = TypeVar("T")
SECONDS = 46
SURPRISES = (
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RecursionError("too deep"),
    AttributeError("'int' object has no attribute 'split'"),
    MemoryError(),
    AssertionError("of a library"),
)


def ticks(tree: AllocationTree) -> list[Reading]:
    """Readings of so many seconds."""
    read, found = tree._given, list[Reading]()
    for _ in range(SECONDS):
        if is_due(read, tree.clock.monotonic()):
            found.append(perform(read, tree.clock, ReadCosts())[0])
        tree.clock.advance(1)
    return found


@pytest.mark.parametrize("asked", ["slurm", "kubelet"])
@pytest.mark.parametrize("error", SURPRISES, ids=lambda error: type(error).__name__)
def test_a_surprise_costs_its_question_alone(tmp_path: Path, asked: str, error: Exception) -> None:
    """Its values expire, its source is down with the text, and the interval holds."""
    tree = AllocationTree(tmp_path, slurm=True)
    tree.write("/etc/slurm/gres.conf", GRES)
    tree.write("/var/lib/kubelet/pod-resources/kubelet.sock", "")
    tree.answers.jobs = [SHOWN]
    assert tree.allocated() == {"0": 0, "1": 1, "2": 1}

    def breaks(_: str) -> list[str]:
        raise error

    setattr(tree.answers, asked, breaks)
    readings = ticks(tree)
    assert len(readings) == SECONDS // 15
    for reading in readings:
        assert reading.failure is not None
        assert type(error).__name__ in str(reading.failure)
        assert {one.reason for one in reading.absences} == {Reason.FAILED}
        known = {labels[0] for _, labels, _ in reading.samples}
        assert known == (set() if asked == "slurm" else {"1", "2"})


def test_an_answer_that_never_comes_expires_what_was_known(tmp_path: Path) -> None:
    tree = AllocationTree(tmp_path, slurm=True)
    tree.answers.jobs = [SHOWN]
    tree.look()

    def hangs(_: str, __: Callable[[], T], /) -> Future[T]:
        return Future()

    (read,) = [tree._given]
    read.run.__self__.spawn = hangs  # type: ignore[attr-defined]
    assert tree.allocations.given.jobs
    tree.clock.advance(15)
    ticks(tree)
    assert SECONDS > EXPIRED
    assert tree.allocations.given.jobs == ()
    assert {one.reason for one in tree.look().absences} == {Reason.STALLED}
