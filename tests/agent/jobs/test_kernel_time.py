"""Time in the kernel of launching threads and of others."""

import pytest

from agent.hardware import processes
from tests.agent.jobs.test_process_times import MAIN, Reader
from tests.support.process_tree import ProcessTree


def test_time_in_the_kernel_belongs_to_those_that_spent_it(tree: ProcessTree) -> None:
    """A loader reads files: the kernel fills its pages. The trainer saves files beside a thread
    that reads some; each page of fresh memory that it fills costs one fault."""
    reader = Reader(tree)
    for second in range(14):
        tree.does(101, "S", 0.5 * second, system=0.4 * second)
        tree.thread(MAIN, MAIN, "S", 0.3 * second)
        tree.thread(MAIN, 130, "R", 0.2 * second)
        tree.does(MAIN, "S", 0.5 * second, system=0.25 * second, faults=40_000 * second)
        found = reader.found()
    assert found.launching is not None
    assert found.launching.system == pytest.approx(0.25, abs=0.011)
    assert found.launching.fresh == pytest.approx(40_000 * processes.FAULT)
    assert found.working.system == pytest.approx(0.4, abs=0.011)
