"""What `check` finds wrong on simulated machines, and that a healthy one has nothing wrong."""

import pytest

from agent.findings import findings
from tests.machines import simulated

WRONG = {
    "dgx-1-v100:gpu-lost": "7 of 8 GPUs answer",
    "dgx-station-v100:nvlink-down": "3 of 4 NVLinks are up (down: ",
    "dgx-h100:nvlink-errors": "errors since the last reset",
    "dgx-1-p100:pcie-degraded": "8 of 16 PCIe lanes are in use",
    "dgx-h100:gpu-hot": "hotter than its operating range",
    "dgx-a100:throttled": "clocks are held down by ",
    "dgx-1-v100:ecc": "uncorrected ECC errors since the driver was loaded",
    "dgx-h200:row-remap": "could not be remapped",
    "dgx-1-v100:port-degraded": "port mlx5_",
    "dgx-h100:xid": "XID 48, double-bit ECC error",
}
HEALTHY = ("dgx-1-p100", "dgx-1-v100", "dgx-station-v100", "dgx-a100", "dgx-h100", "k40")


@pytest.mark.parametrize("machine", WRONG)
def test_a_fault_is_found_and_named(machine: str) -> None:
    bench = simulated(machine).run(65)
    assert WRONG[machine] in "\n".join(findings(bench.agent.poller.latest))


@pytest.mark.parametrize("system", HEALTHY)
@pytest.mark.parametrize("scenario", ["training", "idle", "held", "starved-disk"])
def test_a_healthy_machine_has_none(system: str, scenario: str) -> None:
    bench = simulated(f"{system}:{scenario}").run(12)
    assert list(findings(bench.agent.poller.latest)) == []
