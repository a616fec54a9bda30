"""The spec sheets against the papers and data sheets, whose figures are typed here again."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.specs.sheets import GpuSpec, Specs, SystemSpec, load

TYPED = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))
PAPERS = TYPED["papers"]
SYSTEMS, MODERN_SYSTEMS = TYPED["systems"], TYPED["modern_systems"]
NO_FIGURES = {"paper", "of_another", "bandwidths"}
SHOWN = (
    *("gpu_count", "nvlink_links_per_gpu", "infiniband_ports", "data_ssds", "tdp"),
    *("inlet_lowest", "inlet_highest", "memory"),
)


def having(key: str) -> list[Any]:
    """The GPUs of papers that state a figure."""
    return [pytest.param(one, id=one["model"]) for one in TYPED["gpus"] if key in one]


@pytest.fixture(scope="module")
def specs() -> Specs:
    return load()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_has_the_papers_figures_and_no_others(specs: Specs, name: str) -> None:
    system, typed = specs.systems[name], SYSTEMS[name]
    origins = tuple(PAPERS.values())
    stated = {k: one for k, one in system.values.items() if one.source.startswith(origins)}
    figures = {key: value for key, value in typed.items() if key not in NO_FIGURES}
    assert {key: one.base for key, one in stated.items()} == pytest.approx(figures)
    for key, one in stated.items():
        paper = typed.get("of_another", {}).get(key, typed["paper"])
        assert one.source.startswith(f"{PAPERS[paper]}, ")
    bandwidths = system.bandwidths
    speeds = {key: one.bytes_per_second for key, one in bandwidths.items()}
    rates = typed["bandwidths"]
    wires = {(path, way): n for path, ways in rates.items() for way, n in ways.items()}
    assert speeds == pytest.approx(wires)
    assert all(one.source.startswith(f"{PAPERS[typed['paper']]}, ") for one in bandwidths.values())


def test_what_no_paper_states_is_absent(specs: Specs) -> None:
    assert not any(("disk", "write") in system.bandwidths for system in specs.systems.values())
    paper = {
        name
        for name, one in specs.systems.items()
        if one.values["gpu_count"].source.startswith(tuple(PAPERS.values()))
    }
    assert paper == set(SYSTEMS)


@pytest.mark.parametrize("typed", having("memory"))
def test_a_gpu_has_the_papers_memory(specs: Specs, typed: dict[str, Any]) -> None:
    gpu, paper = specs.gpu(typed["model"]), PAPERS[typed["paper"]]
    assert gpu is not None
    assert "memory" in gpu.values
    bandwidth = gpu.bandwidths["hbm", "total"]
    assert (gpu.values["memory"].base, bandwidth.bytes_per_second) == pytest.approx(
        (typed["memory"], typed["memory_bandwidth"])
    )
    assert gpu.values["memory"].source.startswith(f"{paper}, ")
    assert bandwidth.source.startswith(f"{paper}, ")
    assert [gpu.values[key].value for key in ("pcie_generation", "pcie_lanes")] == [3, 16]


@pytest.mark.parametrize("typed", having("nvlink"))
def test_a_gpu_has_the_papers_nvlinks_in_one_direction(specs: Specs, typed: dict[str, Any]) -> None:
    gpu = specs.gpu(typed["model"])
    assert gpu is not None
    assert gpu.values["nvlink_links_max"].value == typed["links"]
    for direction in ("transmit", "receive"):
        link = gpu.bandwidths["nvlink", direction]
        assert link.bytes_per_second * typed["links"] * 2 == pytest.approx(typed["nvlink"])
        assert link.source.startswith(f"{PAPERS[typed['paper']]}, ")


@pytest.mark.parametrize("typed", having("single"))
def test_single_gpus_have_no_nvlink(specs: Specs, typed: dict[str, Any]) -> None:
    gpu = specs.gpu(typed["model"])
    assert gpu is not None
    assert "nvlink_links_max" not in gpu.values
    assert ("nvlink", "transmit") not in gpu.bandwidths
    system = specs.systems[gpu.name]
    assert (system.gpus, system.gpu, system.nvlink_links) == (1, gpu.name, None)


@pytest.mark.parametrize("typed", TYPED["modern_gpus"], ids=lambda typed: str(typed["model"]))
def test_a_modern_gpu_has_the_data_sheets_figures(specs: Specs, typed: dict[str, Any]) -> None:
    gpu = specs.gpu(typed["model"])
    assert gpu is not None
    assert "memory" in gpu.values
    generation = typed.get("pcie_generation")
    hbm, link = map(gpu.bandwidths.get, (("hbm", "total"), ("nvlink", "receive")))
    links = gpu.values["nvlink_links_max"].value if link else 0
    both_ways = 2 * links * link.bytes_per_second if link else 0
    assert gpu.values["memory"].base == pytest.approx(typed["memory"])
    assert (hbm.bytes_per_second if hbm else 0) == pytest.approx(typed.get("memory_bandwidth", 0))
    assert both_ways == pytest.approx(typed.get("nvlink", 0))
    lanes = 16 if generation else None
    slot = [gpu.values.get(key) for key in ("pcie_generation", "pcie_lanes")]
    assert [one and one.value for one in slot] == [generation, lanes]
    origins = ("[P] ", "[U] ", "measured: ")
    assert all(value.source.startswith(origins) for value in gpu.values.values())


@pytest.mark.parametrize("name", MODERN_SYSTEMS)
def test_a_modern_system_has_the_data_sheets_figures(specs: Specs, name: str) -> None:
    system, typed = specs.systems[name], MODERN_SYSTEMS[name]
    infiniband = system.bandwidths.get(("infiniband", "receive"))
    assert (infiniband.bytes_per_second if infiniband else 0) == typed.get("infiniband", 0)
    shown = {key: system.values[key].base if key in system.values else 0 for key in SHOWN}
    assert shown == pytest.approx({key: typed.get(key, 0) for key in SHOWN})
    graph = system.nvlink_graph
    assert (graph and (graph.kind, graph.pairs)) == (
        ("nvswitch", ()) if "nvlink_links_per_gpu" in typed else None
    )


def test_every_modern_sheet_was_typed_again(specs: Specs) -> None:
    sheets = (specs.gpu(one["model"]) for one in (*TYPED["modern_gpus"], *TYPED["gpus"]))
    assert {spec.name for spec in sheets if spec} == set(specs.gpus)
    assert {*SYSTEMS, *MODERN_SYSTEMS, *specs.gpus} >= set(specs.systems)


def test_what_the_papers_contradict_is_reported(specs: Specs) -> None:
    assert "512 MB" in specs.systems["dgx-1-v100"].values["memory"].note


def test_every_source_names_a_paper_or_a_public_origin(specs: Specs) -> None:
    sheets: list[SystemSpec | GpuSpec] = [*specs.systems.values(), *specs.gpus.values()]
    cited = [value.source for sheet in sheets for value in sheet.values.values()]
    cited += [bandwidth.source for sheet in sheets for bandwidth in sheet.bandwidths.values()]
    cited += [s.nvlink_graph.source for s in specs.systems.values() if s.nvlink_graph]
    cited += [gpu.models.source for gpu in specs.gpus.values()]
    cited += [s.products.source for s in specs.systems.values() if s.products]
    public = ("[P] ", "[U] ", "measured: ", "a single card")
    origins = (*(f"{paper}, " for paper in PAPERS.values()), *public)
    assert [source for source in cited if not source.startswith(origins)] == []
    assert [source for source in cited if re.search(r"/work|seeds|\.txt", source)] == []
