"""PCIe switches above GPUs: who shares an uplink, and what it can carry."""

import pytest

from agent.sources import pcie
from tests.support.machines import simulated

ROOT = "../../../devices/pci0000:00/0000:00:02.0"


@pytest.mark.parametrize(
    ("path", "ports"),
    [
        (f"{ROOT}/0000:06:00.0", []),
        (f"{ROOT}/0000:04:00.0/0000:05:08.0/0000:06:00.0", ["0000:04:00.0"]),
        (
            f"{ROOT}/0000:04:00.0/0000:05:08.0/0000:07:00.0/0000:08:10.0/0000:0b:00.0",
            ["0000:04:00.0", "0000:07:00.0"],
        ),
        ("../../../devices/platform/x", []),
    ],
)
def test_upstream_ports_are_found_in_the_tree(path: str, ports: list[str]) -> None:
    assert pcie.upstream_ports(path) == ports


def test_two_gpus_of_a_dgx_1_share_each_uplink() -> None:
    found = simulated("dgx-1-v100:idle").run(3).samples.all(pcie.UPLINK)
    below: dict[str, list[str]] = {}
    for (gpu, _, bridge), limit in found.items():
        below.setdefault(bridge, []).append(gpu)
        assert limit == pytest.approx(8e9 * 128 / 130 * 16 / 8)
    assert sorted(map(sorted, below.values())) == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]


def test_without_a_switch_nothing_is_reported() -> None:
    assert not simulated("dgx-station-v100:idle").run(3).samples.all(pcie.UPLINK)
