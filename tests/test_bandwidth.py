"""Every data path against its limit: which paths are saturated, and that no other is."""

import pytest

from agent import bandwidth
from agent.bandwidth import Bandwidth, PathKey
from agent.config import Config, LimitConfig
from agent.limits import Limit
from agent.model import Reading, ReadKey, Sample
from agent.sources import disk
from tests.machines import Bench, simulated

BOTH = ("receive", "transmit")
SETTLED = 65  # seconds: links are read once a minute


def saturated(bench: Bench) -> set[tuple[str, str, str]]:
    """Path, device and direction of every path that was ever saturated."""
    found = bench.look.all(bandwidth.SATURATED).items()
    return {(key[0], key[1], key[4]) for key, seconds in found if seconds > 0}


def gpus(path: str, count: int, directions: tuple[str, ...]) -> set[tuple[str, str, str]]:
    return {(path, f"gpu{index}", way) for index in range(count) for way in directions}


SCENARIOS = {
    "dgx-1-p100:starved-disk": {("disk", "md0", "read")},
    "dgx-1-v100:starved-disk": {("disk", "md0", "read")},
    "dgx-1-v100:starved-network": {("network", "eno1", "receive")},
    "dgx-station-v100:starved-network": {("network", "enp1s0f0", "receive")},
    "dgx-1-v100:starved-pcie": {("pcie", "gpu0", "receive")},
    "dgx-a100:starved-pcie": {("pcie", "gpu0", "receive")},
    "dgx-h100:starved-pcie": {("pcie", "gpu0", "receive")},
    "dgx-1-p100:nvlink-saturated": gpus("nvlink", 8, BOTH),
    "dgx-1-v100:nvlink-saturated": gpus("nvlink", 8, BOTH),
    "dgx-station-v100:nvlink-saturated": gpus("nvlink", 4, BOTH),
    "dgx-a100:nvlink-saturated": gpus("nvlink", 8, BOTH),
    "dgx-h200:nvlink-saturated": gpus("nvlink", 8, BOTH),
    "dgx-1-v100:training": set(),
    "dgx-h100:training": set(),
    "dgx-h200:idle": set(),
    "k40:training": set(),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_exactly_the_right_paths_are_saturated(scenario: str) -> None:
    found = saturated(simulated(scenario).run(SETTLED))
    links = {entry for entry in found if entry[0] == "nvlink" and ":" in entry[1]}
    assert found - links == SCENARIOS[scenario]
    assert not links or "nvlink-saturated" in scenario


def test_infiniband_saturates_its_ports_both_ways() -> None:
    found = saturated(simulated("dgx-h100:infiniband-saturated").run(10))
    assert {path for path, _, _ in found} == {"infiniband"}
    assert {way for _, _, way in found} == set(BOTH)


def test_a_pair_of_a_cube_mesh_has_limits_of_its_own() -> None:
    limits = simulated("dgx-1-v100:training").run(3).look.all(bandwidth.LIMIT)
    of_gpu0 = {key[1]: value for key, value in limits.items() if key[:1] == ("nvlink",)}
    assert of_gpu0["gpu0"] == 150e9
    assert {of_gpu0[f"gpu0:{link}"] for link in range(6)} == {25e9}


def test_limits_name_their_origin_and_source() -> None:
    look = simulated("dgx-1-p100:training").run(3).look
    told = {
        (row["path"], row["device"], row["direction"]): (row["origin"], row["source"])
        for row in look.labelled(bandwidth.LIMIT_INFO)
    }
    assert told["disk", "md0", "read"][0] == "spec"
    assert "NVIDIA DGX-1" in told["disk", "md0", "read"][1]
    assert ("disk", "md0", "write") not in told
    assert told["network", "eno1", "receive"] == ("spec", told["network", "eno1", "receive"][1])


def test_what_is_configured_comes_first() -> None:
    config = Config(limit=(LimitConfig("disk", "md0", "write", 1.5e9),))
    look = simulated("dgx-1-v100:training", config).run(3).look
    key = ("disk", "md0", "", "", "write")
    assert look.value(bandwidth.LIMIT, *key) == 1.5e9
    assert look.value(bandwidth.LIMIT_INFO, *key, "configured", "the configuration") == 1


def test_a_narrow_slot_lowers_the_limit_and_hides_no_saturation() -> None:
    look = simulated("dgx-1-v100:pcie-degraded").run(12).look
    limits = {k[1]: v for k, v in look.all(bandwidth.LIMIT).items() if k[0] == "pcie"}
    assert min(limits.values()) == pytest.approx(max(limits.values()) / 2)


def test_links_that_are_down_lower_the_limit_of_their_gpu() -> None:
    look = simulated("dgx-station-v100:nvlink-down").run(95).look
    limits = {k[1]: v for k, v in look.all(bandwidth.LIMIT).items() if k[0] == "nvlink"}
    assert sorted({limits[f"gpu{index}"] for index in range(4)}) == [75e9, 100e9]


KEY = PathKey("disk", "sda", "", "", "read")


def fed(*points: tuple[float, float]) -> Bandwidth:
    """A disk of 100 B/s whose counter reads so at those times; saturated at 0.9."""
    paths = Bandwidth(lambda _: 0.9, {KEY: Limit(100.0, "configured", "")})
    for at, value in points:
        sample = Sample(disk.READ_BYTES, ("sda",), value)
        paths.observe([Reading(ReadKey("disk", "counters"), at, 1.0, (sample,))])
    return paths


def test_a_ratio_above_one_is_told_as_it_is() -> None:
    assert fed((0, 0), (1, 150)).paths[KEY].ratio == 1.5


def test_seconds_are_saturated_at_the_threshold_and_not_below() -> None:
    path = fed((0, 0), (1, 90), (2, 179), (3, 280)).paths[KEY]
    assert (path.saturated, path.observed) == (2.0, 3.0)


def test_a_reset_and_a_gap_are_not_observed() -> None:
    path = fed((0, 500), (1, 20), (2, 40), (9, 900), (10, 920)).paths[KEY]
    assert (path.observed, path.ratio) == (2.0, pytest.approx(0.2))


def test_gpus_that_answer_after_the_first_tick_have_limits_at_once() -> None:
    bench = simulated("dgx-1-v100:training")
    bench.machine.world.fail("nvmlDeviceGetCount", 9)
    bench.run(3)
    assert {"nvlink", "pcie"}.isdisjoint(key[0] for key in bench.look.all(bandwidth.LIMIT))
    bench.machine.world.fail("nvmlDeviceGetCount", None)
    bench.run(11)
    assert {"nvlink", "pcie"} <= {key[0] for key in bench.look.all(bandwidth.LIMIT)}
