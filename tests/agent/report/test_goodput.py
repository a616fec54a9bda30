"""Goodput of GPU-hours, in three factors."""

import pytest

from agent.model import Cause, State
from agent.report.gpu_time import GpuTime, together

BUSY, DISK = (State.BUSY, Cause.NONE), (State.STARVED, Cause.DISK)
IDLE = (State.IDLE, Cause.NONE)


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
