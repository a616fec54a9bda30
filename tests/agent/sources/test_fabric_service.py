"""Detection of the Fabric Manager, where NVSwitches need it and where processes are hidden."""

from pathlib import Path

import pytest

from agent.model import Reason
from agent.sources import host
from tests.support.fake_host import HostBench, reasons, values

NAME = (host.FABRIC_MANAGER.name,)
SWITCH = f"{host.SWITCHES}/0000:86:00.0/information"
KERNEL, MANAGER = {"2": ("kthreadd", 0)}, {"77": ("nv-fabricmanage", 0)}
OF_USERS = {"77": ("nv-fabricmanage", 1000), "2": ("kthreadd", 1000)}
"""Programs of these names that anybody started, in a pid namespace."""


@pytest.mark.parametrize(
    ("seen", "runs"),
    [
        (KERNEL | MANAGER, 1.0),
        (MANAGER, 1.0),
        (KERNEL, 0.0),
        (OF_USERS | KERNEL, 0.0),
        (OF_USERS, None),
        ({}, None),
    ],
)
def test_a_manager_that_is_hidden_is_none_that_stands(
    seen: dict[str, tuple[str, int]], runs: float | None, tmp_path: Path
) -> None:
    """Behind hidepid, or in a pid namespace, it was reported as missing: a critical alert."""
    bench = HostBench(tmp_path)
    bench.write(SWITCH, "")
    bench.write(host.PID_FILE, "77")
    for pid, (name, uid) in seen.items():
        bench.write(f"/proc/{pid}/comm", f"{name}\n")
        bench.write(f"/proc/{pid}/status", f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    reading = bench.read(host, "state")
    assert values(reading) == ({} if runs is None else {NAME: runs})
    assert reasons(reading.absences) == ({NAME: Reason.DENIED} if runs is None else {})
