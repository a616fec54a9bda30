"""Every scenario raises the alerts of the contract and no others: agent and rules together,
without daemons."""

from pathlib import Path

import pytest

from agent import simulator as simulation
from agent.simulator.scenarios import NAMES, TOUR
from tests.support.alert_replay import SCALE, firing, record, used
from tests.support.machines import played
from tests.support.nightly import NIGHTLY

STARVED, EXPOSED = "DgxGpuStarved", "DgxExposedCommunication"
EXPECTED: dict[str, set[str]] = {
    "training": set(),
    "idle": set(),
    "held": {"DgxGpuHeldIdle"},
    "starved-disk": {STARVED},
    "starved-network": {STARVED, "DgxLinkSaturated"},
    "starved-pcie": {STARVED, "DgxLinkSaturated"},
    "starved-cpu": {STARVED},
    "starved-host-thread": {STARVED},
    "starved-peer": {STARVED, "DgxGpuStraggler"},
    "nvlink-saturated": {"DgxLinkSaturated", EXPOSED},
    "infiniband-saturated": {"DgxLinkSaturated", EXPOSED},
    "throttled": {"DgxGpuThrottled"},
    "gpu-hot": {"DgxGpuHot"},
    "gpu-lost": {"DgxGpuMissing"},
    "gpu-slow": {"DgxGpuNotAnswering"},
    "nvlink-down": {"DgxNvlinkDown"},
    "nvlink-errors": {"DgxNvlinkErrors"},
    "pcie-degraded": {"DgxPcieDegraded"},
    "port-degraded": {"DgxLinkDegraded"},
    "xid": {"DgxGpuXid"},
    "ecc": {"DgxGpuEccUncorrected"},
    "row-remap": {"DgxGpuRowRemapFailure"},
    "driver-hang": {"DgxAgentBlind"},
    "exposed-communication": {EXPOSED},
    "hang": {"DgxJobHung", STARVED, "DgxGpuStraggler"},  # for 20 s it may be a wait
    "late-rank": {STARVED, "DgxGpuStraggler"},
    "checkpoint": {STARVED},
    "threads": {STARVED},
    "no-demand": set(),
}
KNOWN_DISKS = "dgx-1-v100"
"""Its sheet states what the array can read; that of the others does not, so no one can say that
their disks are full."""

SECONDS = {
    "held": 125,
    "no-demand": 200,
    "late-rank": 75,
    "nvlink-errors": 80,
    "ecc": 75,
    "training": 75,
    "idle": 75,
}
"""Held: only after a minute; a server is known after half of one. Some counters are read once a
minute, and a second reading confirms errors; rules are evaluated each fourth second."""

USUAL_SECONDS = 45
SCALES = {"late-rank": 1 / 240}
"""Reported by the window of six hours alone, of which half must be observed."""

SINGLE, WITH_ECC, SMALL, LARGE = "titan-x-pascal", "l40s", "dgx-station-v100", "gb200-tray"
ALONE = {
    *("idle", "held", "starved-disk", "starved-network", "starved-pcie", "starved-cpu"),
    *("starved-host-thread", "throttled", "gpu-hot", "xid", "driver-hang", "checkpoint", "threads"),
    "no-demand",
}
"""Scenarios in which one GPU shows as much as four, in a fifth of the time."""

OF_ONE = dict.fromkeys(ALONE, SINGLE) | dict.fromkeys(("training", "ecc"), WITH_ECC)

PLAYED = [
    *(
        (OF_ONE.get(name, SMALL), name)
        for name in NAMES
        if name != TOUR and name not in ("infiniband-saturated", "row-remap")
    ),
    *((LARGE, name) for name in ("infiniband-saturated", "row-remap")),
    (KNOWN_DISKS, "starved-disk"),
]


def test_every_scenario_is_played() -> None:
    assert set(EXPECTED) == set(NAMES) - {TOUR}
    assert {name for _, name in PLAYED} == set(EXPECTED)
    assert all(simulation.parse(f"{system}:{name}") for system, name in PLAYED)


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("system", "scenario"),
    [*PLAYED, *(pytest.param(SMALL, name, marks=NIGHTLY) for name in sorted(OF_ONE))],
    ids=lambda x: x,
)
def test_raises_its_alerts_and_no_others(system: str, scenario: str, tmp_path: Path) -> None:
    seconds = SECONDS.get(scenario, USUAL_SECONDS)
    series = record(played(f"{system}:{scenario}"), seconds, used())
    full = {"DgxDiskSaturated"} if (system, scenario) == (KNOWN_DISKS, "starved-disk") else set()
    wanted = EXPECTED[scenario] | full | {"DgxWatchdog"}
    scale = SCALES.get(scenario, SCALE)
    assert firing(series, seconds - 2, tmp_path, scale) == wanted
