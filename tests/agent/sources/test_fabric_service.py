"""Whether the Fabric Manager runs, where NVSwitches need it and where processes are hidden."""

from pathlib import Path

import pytest

from agent.model import Reason
from agent.sources import fabric_service
from tests.support.fake_host import HostBench, reasons, values

NAME = (fabric_service.RUNNING.name,)
SWITCH = f"{fabric_service.SWITCHES}/0000:86:00.0/information"
KERNEL, MANAGER = {"2": "kthreadd\n"}, {"77": "nv-fabricmanage\n"}


@pytest.mark.parametrize(
    ("seen", "runs"), [(KERNEL | MANAGER, 1.0), (MANAGER, 1.0), (KERNEL, 0.0), ({}, None)]
)
def test_a_manager_that_is_hidden_is_none_that_stands(
    seen: dict[str, str], runs: float | None, tmp_path: Path
) -> None:
    """Behind hidepid, or in a pid namespace, it was told as missing: a critical alert."""
    bench = HostBench(tmp_path)
    bench.write(SWITCH, "")
    bench.write(fabric_service.PID_FILE, "77")
    for pid, name in seen.items():
        bench.write(f"/proc/{pid}/comm", name)
    reading = bench.read(fabric_service, "state")
    assert values(reading) == ({} if runs is None else {NAME: runs})
    assert reasons(reading.absences) == ({NAME: Reason.DENIED} if runs is None else {})
