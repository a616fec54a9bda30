"""Every data path against its limit: which paths are saturated, and that no other is."""

from collections.abc import Iterable

import pytest

from agent.cli.run import _follow
from agent.config.settings import Configuration, Settings
from agent.limits import paths, resolution
from agent.limits.paths import PathAccounts
from agent.limits.resolution import LimitConfig, LimitInputs, LimitsConfig, PathKey, resolve
from agent.model import Reading, ReadKey, Reason, Sample
from agent.series import SampleStore
from agent.simulator import models, scenarios
from agent.sources import disk, gpu, nvlink
from agent.specs.sheets import Limit, SaturationConfig, SpecConfig
from tests.support.machines import played, simulated
from tests.support.nightly import covering

BOTH = ("receive", "transmit")
SOON, SETTLED = 12, 65  # seconds: links are read once a minute, the rest every ten at least


def saturated(samples: SampleStore) -> set[tuple[str, str, str]]:
    """Path, device and direction of every path that was ever saturated."""
    found = samples.all(paths.SATURATED).items()
    return {(key[0], key[1], key[4]) for key, seconds in found if seconds > 0}


def gpus(path: str, count: int, directions: tuple[str, ...]) -> set[tuple[str, str, str]]:
    return {(path, f"gpu{index}", way) for index in range(count) for way in directions}


SCENARIOS = {
    "dgx-station-v100:nvlink-saturated": gpus("nvlink", 4, BOTH),
    "dgx-a100:nvlink-saturated": gpus("nvlink", 2, BOTH),
    "dgx-h100:nvlink-saturated": gpus("nvlink", 2, BOTH),
    "dgx-station-v100:training": set(),
    "dgx-h100:training": set(),
    "dgx-h200:idle": set(),
    "k40:training": set(),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_exactly_the_right_paths_are_saturated(scenario: str) -> None:
    linked = scenario.endswith(
        ("nvlink-saturated", "dgx-h100:training", "dgx-station-v100:training")
    )
    found = saturated(played(scenario).at(SETTLED if linked else SOON).samples)
    links = {entry for entry in found if entry[0] == "nvlink" and ":" in entry[1]}
    assert found - links == SCENARIOS[scenario]
    assert not links or "nvlink-saturated" in scenario


def ports(count: int) -> set[tuple[str, str, str]]:
    return {("infiniband", f"mlx5_{n}:1", way) for n in range(count) for way in BOTH}


SWITCHED = ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300")
FULL: dict[str, dict[str, set[tuple[str, str, str]]]] = {
    "starved-disk": {name: {("disk", "md0", "read")} for name in ("dgx-1-p100", "dgx-1-v100")},
    "starved-network": {
        **{key: {("network", "eno1", "receive")} for key in ("dgx-1-p100", "dgx-1-v100")},
        **{key: {("network", "ens6f0", "receive")} for key in (*SWITCHED, "gb200-tray")},
        "dgx-spark": {("network", "enP7s7", "receive")},
        "dgx-station-v100": {("network", "enp1s0f0", "receive")},
    },
    "infiniband-saturated": {
        **dict.fromkeys(("dgx-1-p100", "dgx-1-v100"), ports(4)),
        **dict.fromkeys(SWITCHED, ports(8)),
        "gb200-tray": ports(4),
    },
    "starved-pcie": {"k40": set()},  # Kepler does not report its PCIe traffic
}
"""Paths that fill up, by scenario and system; below are those for the systems not named."""

OTHERS: dict[str, set[tuple[str, str, str]]] = {
    "starved-disk": set(),  # no sheet states the speed of their disks
    "starved-network": {("network", "enp4s0", "receive")},
    "starved-pcie": {("pcie", "gpu0", "receive")},
    "infiniband-saturated": set(),
}


def possible_on(names: Iterable[str]) -> list[tuple[str, str]]:
    """Scenario and system, for those of these scenarios that the system can have."""
    return [
        (name, system)
        for name in names
        for system, machine in models.ALL.items()
        if not scenarios.missing(machine, name)
    ]


@pytest.mark.parametrize(("scenario", "system"), covering(possible_on(OTHERS)))
def test_on_every_system_what_a_scenario_fills_is_saturated(scenario: str, system: str) -> None:
    expected = FULL[scenario].get(system, OTHERS[scenario])
    assert saturated(played(f"{system}:{scenario}").at(SOON).samples) == expected


def test_one_pair_of_a_cube_mesh_is_full_at_a_sixth_of_its_gpu() -> None:
    whole = PathKey("nvlink", "gpu0", "0", "GPU-0", "transmit")
    link = whole._replace(device="gpu0:2")
    limits = {key: Limit(speed, "spec", "") for key, speed in ((whole, 150e9), (link, 25e9))}
    paths = PathAccounts(Configuration(), limits)
    samples = SampleStore()
    for at in (0.0, 60.0):
        both = (
            Sample(nvlink.WIRE_TRANSMITTED, ("0", "GPU-0"), 24e9 * at),
            Sample([*nvlink.PER_LINK][2], ("0", "GPU-0", "2"), 24e9 * at),
        )
        samples.take(at, [Reading(ReadKey("nvlink", "links"), at, 60.0, both)])
        paths.observe(samples)
    shown = {key.device: (path.ratio, path.saturated) for key, path in paths.paths.items()}
    assert shown == {"gpu0": (pytest.approx(0.16), 0.0), "gpu0:2": (pytest.approx(0.96), 60.0)}


@pytest.mark.parametrize(
    ("machine", "speed"), [("dgx-1-v100:training", 898e9), ("dgx-spark:training", 273e9)]
)
def test_memory_has_a_limit_also_where_nothing_shows_its_traffic(
    machine: str, speed: float
) -> None:
    samples = played(machine).at(5).samples
    key = next(key for key in samples.all(paths.LIMIT) if key[0] == "hbm")
    assert samples.value(paths.LIMIT, *key) == pytest.approx(speed, rel=0.003)
    why = samples.absence(paths.RATIO, *key)
    assert why is not None
    assert "GPM" in why.detail


def test_what_no_paper_states_is_unknown_until_it_is_configured() -> None:
    snapshot, _ = moment = played("dgx-station-v100:starved-disk").at(12)
    assert not [key for key in moment.samples.all(paths.LIMIT) if key[0] == "disk"]
    reasons = {
        (a.labels[1], a.labels[4]): a.reason
        for a in snapshot.absences(snapshot.at)
        if a.metric is paths.RATIO and a.labels[0] == "disk"
    }
    assert reasons["md0", "read"] is Reason.NOT_CONFIGURED
    config = Settings(LimitsConfig((LimitConfig("disk", "md0", "read", 1.56e9),)))
    found = saturated(simulated("dgx-station-v100:starved-disk", config).run(12).samples)
    assert found == {("disk", "md0", "read")}


def test_limits_name_their_origin_and_source() -> None:
    samples = played("dgx-1-p100:training").at(3).samples
    shown = {
        (row["path"], row["device"], row["direction"]): (row["origin"], row["source"])
        for row in samples.labelled(paths.LIMIT_INFO)
    }
    assert shown["disk", "md0", "read"][0] == "spec"
    assert "NVIDIA DGX-1" in shown["disk", "md0", "read"][1]
    assert ("disk", "md0", "write") not in shown
    assert shown["nvlink", "gpu0", "transmit"][1].startswith("4 links of 20 GB/s: ")
    assert shown["network", "eno1", "receive"] == ("spec", shown["network", "eno1", "receive"][1])


def test_what_is_configured_comes_first() -> None:
    config = Settings(LimitsConfig((LimitConfig("disk", "md0", "write", 1.5e9),)))
    samples = simulated("dgx-1-v100:training", config).run(3).samples
    key = ("disk", "md0", "", "", "write")
    assert samples.value(paths.LIMIT, *key) == 1.5e9
    assert samples.value(paths.LIMIT_INFO, *key, "configured", "the configuration") == 1


def test_a_narrow_slot_lowers_the_limit_and_hides_no_saturation() -> None:
    samples = simulated("dgx-1-v100:pcie-degraded").run(12).samples
    of_gpu0 = {k[1]: v for k, v in samples.all(paths.LIMIT).items() if k[:3:2] == ("nvlink", "0")}
    assert of_gpu0 == {"gpu0": 150e9} | {f"gpu0:{link}": 25e9 for link in range(6)}
    limits = {k[1]: v for k, v in samples.all(paths.LIMIT).items() if k[0] == "pcie"}
    assert min(limits.values()) == pytest.approx(max(limits.values()) / 2)


def test_links_that_are_down_lower_the_limit_of_their_gpu() -> None:
    samples = played("dgx-station-v100:nvlink-down").at(65).samples
    limits = {k[1]: v for k, v in samples.all(paths.LIMIT).items() if k[0] == "nvlink"}
    assert sorted({limits[f"gpu{index}"] for index in range(4)}) == [75e9, 100e9]


@pytest.mark.parametrize(("architecture", "speed"), [("blackwell", 50e9), ("hopper", 25e9)])
def test_links_of_a_gpu_without_a_sheet_are_those_of_its_architecture(
    architecture: str, speed: float
) -> None:
    who = ("0", "GPU-0")
    samples = SampleStore()
    shown = (
        Sample(gpu.INFO, (*who, "NVIDIA X900", architecture, "", "", ""), 1),
        Sample(nvlink.LINKS, who, 18),
        Sample(nvlink.LINK_INFO, (*who, "3", "gpu", ""), 1),
    )
    samples.take(0.0, [Reading(ReadKey("gpu", "info"), 0.0, 60.0, shown)])
    machine = LimitInputs(samples, None)
    found = resolve(machine, resolution.find_paths(machine))
    limits = {key.device: limit for key, limit in found.items()}
    assert limits["gpu0"].bytes_per_second == 18 * speed
    assert limits["gpu0:3"].bytes_per_second == speed


KEY = PathKey("disk", "sda", "", "", "read")


def fed(*points: tuple[float, float]) -> PathAccounts:
    """A disk of 100 B/s whose counter reads so at those times; saturated at 0.9."""
    paths = PathAccounts(Configuration(), {KEY: Limit(100.0, "configured", "")})
    samples = SampleStore()
    for at, value in points:
        sample = Sample(disk.READ_BYTES, ("sda",), value)
        samples.take(at, [Reading(ReadKey("disk", "counters"), at, 1.0, (sample,))])
        paths.observe(samples)
    return paths


@pytest.mark.parametrize(
    ("points", "ratio", "saturated", "observed"),
    [
        (((0, 0), (1, 150)), 1.5, 1.0, 1.0),  # a ratio above one is reported as it is
        (((0, 0), (1, 90), (2, 179), (3, 280)), 1.01, 2.0, 3.0),  # at the threshold, not below
        (((0, 500), (1, 20), (2, 40), (9, 900), (10, 920)), 0.2, 0.0, 2.0),  # a reset and a gap
    ],
)
def test_seconds_are_observed_and_saturated(
    points: tuple[tuple[float, float], ...], ratio: float, saturated: float, observed: float
) -> None:
    path = fed(*points).paths[KEY]
    assert (path.ratio, path.saturated, path.observed) == (
        pytest.approx(ratio),
        saturated,
        observed,
    )


def test_gpus_that_answer_after_the_first_tick_have_limits_at_once() -> None:
    bench = simulated("dgx-station-v100:training")
    bench.machine.driver.fail("nvmlDeviceGetCount", 9)
    bench.run(3)
    assert {"nvlink", "pcie"}.isdisjoint(key[0] for key in bench.samples.all(paths.LIMIT))
    bench.machine.driver.fail("nvmlDeviceGetCount", None)
    bench.run(11)
    assert {"nvlink", "pcie"} <= {key[0] for key in bench.samples.all(paths.LIMIT)}


def test_a_configured_threshold_decides_what_is_saturated() -> None:
    samples = played("dgx-1-v100:training").at(12).samples
    key = ("network", "eno1", "", "", "receive")
    usual = samples.value(paths.RATIO, *key)
    assert usual is not None
    assert 0 < usual < 0.9
    assert samples.value(paths.SATURATED, *key) == 0
    config = Settings(SaturationConfig(network=usual / 2))
    samples = simulated("dgx-1-v100:training", config).run(12).samples
    assert (samples.value(paths.SATURATED, *key) or 0) > 8


def test_a_reloaded_system_changes_all_limits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that a GPU should have were read once a minute, and limits lagged behind."""
    monkeypatch.setattr("agent.cli.run.journal.start_logging", lambda _: None)
    bench = simulated("dgx-h100:idle", gpus=2).run(70)
    agent, (first, *_) = bench.agent, bench.agent.gpus.inventory.gpus
    changed = agent.settings.including(SpecConfig(system="dgx-a100", gpus=2))
    agent.configuration.current = agent.complete(changed)
    _follow(agent, agent.settings)
    bench.run(3)
    assert bench.samples.value(nvlink.LINKS_EXPECTED, *first.key.labels) == 12
    spec = bench.samples.where(paths.SPEC, path="nvlink", uuid=first.uuid, direction="transmit")
    assert [*spec.values()] == [300e9]
