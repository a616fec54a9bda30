"""The spec sheets: systems, graphs of links, thresholds, standards of wires, recognition."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from agent.config.configuration import ConfigError
from agent.specs.sheets import (
    PATHS,
    UNITS,
    SaturationConfig,
    Specs,
    load,
    pcie_bytes_per_second,
    recognise,
)
from tests.support.call_count import calls_of
from tests.support.each import of_each

SYSTEMS = {
    *(f"dgx-{name}" for name in ("1-p100", "1-v100", "station-v100", "station-gb300", "spark")),
    *(f"dgx-{gpu}" for gpu in ("a100", "a100-320gb", "h100", "h200", "b200", "b300")),
    *("k40", "titan-x-maxwell", "gtx-1080", "titan-x-pascal", "gb200-tray", "gb300-tray"),
    *(f"hgx-{board}" for board in ("a100", "h100", "h200", "b200", "b300")),
    *("a100-pcie-40gb", "a100-pcie-80gb", "h100-pcie-80gb", "h100-nvl-94gb", "h200-nvl-141gb"),
    *("gh200-96gb", "gh200-144gb", "l4", "l40s", "a10", "a40", "a30", "t4"),
    *("rtx-4090", "rtx-5090", "rtx-pro-6000", "rtx-pro-6000-server"),
}


@pytest.fixture(scope="module")
def specs() -> Specs:
    return load()


def test_every_system_of_the_contract_has_a_sheet(specs: Specs) -> None:
    assert set(specs.systems) == SYSTEMS


GRAPHS = (
    ("dgx-1-p100", "cube-mesh", 16, [4] * 8),
    ("dgx-1-v100", "cube-mesh", 24, [6] * 8),
    ("dgx-station-v100", "fully-connected", 8, [4] * 4),
)


@pytest.mark.parametrize(("name", "kind", "links", "of_each"), GRAPHS)
def test_a_graph_has_the_papers_number_of_links(
    specs: Specs, name: str, kind: str, links: int, of_each: list[int]
) -> None:
    graph = specs.systems[name].nvlink_graph
    assert graph is not None
    assert (graph.kind, sum(count for *_, count in graph.pairs)) == (kind, links)
    for gpu, wanted in enumerate(of_each):
        assert sum(count for *ends, count in graph.pairs if gpu in ends) == wanted
    assert len({frozenset(pair[:2]) for pair in graph.pairs}) == len(graph.pairs)


@pytest.mark.parametrize("name", ["dgx-1-p100", "dgx-1-v100", "dgx-station-v100"])
def test_a_quad_is_fully_connected_and_each_gpu_of_two_has_one_bridge(
    specs: Specs, name: str
) -> None:
    graph, gpus = specs.systems[name].nvlink_graph, specs.systems[name].gpus
    assert graph is not None
    ends = [pair[:2] for pair in graph.pairs]
    near = {gpu: {x for pair in ends if gpu in pair for x in pair} for gpu in range(gpus)}
    for gpu, others in near.items():
        quad = {*range(4)} if gpu < 4 else {*range(4, 8)}
        assert quad <= others
        assert len(others - quad) == (gpus == 8)


def test_thresholds_of_saturation() -> None:
    others = dict.fromkeys(("hbm", "disk", "network", "infiniband"), 0.90)
    assert asdict(SaturationConfig()) == {"nvlink": 0.85, "pcie": 0.80, **others}


def test_pcie_by_generation_and_width(specs: Specs) -> None:
    rates = {1: 4.0e9, 2: 8.0e9, 3: 15.754e9, 4: 31.508e9, 5: 63.015e9, 6: 118e9}
    for generation, rate in rates.items():
        assert pcie_bytes_per_second(generation, 16) == pytest.approx(rate, rel=1e-4)
    assert pcie_bytes_per_second(3, 8) == pytest.approx(15.754e9 / 2, rel=1e-4)
    assert pcie_bytes_per_second(9, 16) is None
    slot = specs.gpus["tesla-v100-sxm2"].bandwidths["pcie", "receive"]
    assert slot.bytes_per_second == pytest.approx(15.754e9, rel=1e-4)


V100, H100, GB200 = "Tesla V100-SXM2-16GB", "NVIDIA H100 80GB HBM3", "NVIDIA GB200"
PLAIN_BOX = "System Product Name"
RECOGNISED = tomllib.loads(Path(__file__).with_name("recognised.toml").read_text(encoding="utf-8"))


@of_each(RECOGNISED["machines"])
def test_recognition(case: dict[str, Any]) -> None:
    models = tuple(model for model, count in case["gpus"].items() for _ in range(count))
    found = recognise(models, case["product"])
    assert (found.name if found else None) == case.get("system")


@pytest.mark.parametrize(("gpus", "racked", "name"), [(3, True, "gb200-tray"), (3, False, None)])
def test_a_tray_is_known_by_its_rack(gpus: int, racked: bool, name: str | None) -> None:
    found = recognise((GB200,) * gpus, PLAIN_BOX, racked=racked)
    assert (found.name if found else None) == name


def test_the_configuration_overrules_recognition(specs: Specs) -> None:
    found = recognise((H100,) * 8, PLAIN_BOX, "dgx-h100")
    assert found is specs.systems["dgx-h100"]
    assert recognise((V100,), "DGXH100", "dgx-1-v100") is specs.systems["dgx-1-v100"]


def test_an_unknown_system_in_the_configuration_is_reported_with_the_known() -> None:
    with pytest.raises(ConfigError) as shown:
        recognise((), "", "dgx-9000")
    assert all(name in str(shown.value) for name in ("dgx-9000", *SYSTEMS))


@pytest.mark.parametrize("model", ["H20", "", "Tesla V100-PCIE-16GB", "NVIDIA"])
def test_an_unknown_gpu_has_no_sheet(specs: Specs, model: str) -> None:
    assert specs.gpu(model) is None


def test_loading_is_little_work() -> None:
    """20 ms of an idle core; the sheets are read once."""
    load()  # the first time the interpreter compiles patterns
    assert calls_of(load) < 100
    load.cache_clear()
    assert calls_of(load) < 130_000


FILES = sorted(files("agent.specs").joinpath("dgx-a100.toml").parent.glob("*.toml"))  # type: ignore[attr-defined]
BASE_UNITS = {"GPUs", "CPUs", "SSDs", "links", "lanes", "ports", "bits", "W", "°C"} | {
    *("PCIe generation", "RAID level")
}
FIGURES = {
    "gpu": "memory memory_bus pcie_generation pcie_lanes nvlink_links_max",
    "system": "gpu_count nvlink_links_per_gpu collective infiniband_ports ethernet_ports data_ssds "
    "data_ssd_size data_raid boot_ssds boot_ssd_size memory cpus tdp supply inlet_lowest "
    "inlet_highest",
}
OTHERS = {
    "gpu": "title models source card integrated bandwidth",
    "system": "title gpu gpu_alternatives products source rack nvlink_graph bandwidth",
}
PARTS = {"hbm": "GPU", "nvlink": "link", "pcie": "GPU", "disk": "array"}


@of_each(FILES)
def test_a_sheet_holds_what_is_read_and_nothing_else(path: Path) -> None:
    content = tomllib.loads(path.read_text())
    assert content.keys() <= {"gpu", "system"}
    for kind, table in content.items():
        figures = {k: v for k, v in table.items() if isinstance(v, dict) and "value" in v}
        assert figures.keys() <= set(FIGURES[kind].split())
        assert table.keys() - figures.keys() <= set(OTHERS[kind].split())
        for figure in figures.values():
            assert figure.keys() <= {"value", "unit", "source", "note"}
            assert figure["unit"] in BASE_UNITS | UNITS.keys()
            assert (figure.get("source") or table["source"]).strip()
        ways = []
        for one in table.get("bandwidth", ()):
            assert one.keys() <= {"path", "per", "direction", "value", "unit", "source", "note"}
            directions = PATHS[one["path"]]
            assert one["direction"] in directions or one["direction"] == "each"
            assert one["per"] == PARTS.get(one["path"], "port")
            assert one["value"] > 0
            each = directions if one["direction"] == "each" else (one["direction"],)
            ways += [(one["path"], way) for way in each]
        assert len(ways) == len({*ways})


def test_systems_have_known_gpus_and_graphs_that_agree(specs: Specs) -> None:
    for name, system in specs.systems.items():
        assert {system.gpu, *system.gpu_alternatives} <= specs.gpus.keys(), name
        graph = system.nvlink_graph
        if graph is None or not graph.pairs:
            assert graph is None or graph.kind == "nvswitch"
            continue
        assert graph.kind != "nvswitch"
        assert all(0 <= a < b < system.gpus <= 8 and n > 0 for a, b, n in graph.pairs)
        of_each = [sum(n for a, b, n in graph.pairs if g in (a, b)) for g in range(system.gpus)]
        assert of_each == [system.nvlink_links] * system.gpus
    models = [model for gpu in specs.gpus.values() for model in gpu.models.names]
    assert len(models) == len({*models})
