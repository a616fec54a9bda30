"""The spec sheets against the papers and data sheets, whose figures are typed here again."""

import re

import pytest

from agent.specs.machine import Specs, load
from agent.specs.sheets import GpuSpec, SystemSpec

P100_PAPER = "NVIDIA DGX-1 System Architecture"
V100_PAPER = "NVIDIA DGX-1 With Tesla V100 System Architecture"
STATION_PAPER = "NVIDIA DGX Station Architecture WP-V01"
KERAS_PAPER = "Deep Learning With NVIDIA DGX-1"
BENCHMARK_PAPER = "NVIDIA DGX-1 Supercomputer: Join Our Community-Based Deep Learning Benchmark"
PAPERS = (P100_PAPER, V100_PAPER, STATION_PAPER, KERAS_PAPER, BENCHMARK_PAPER)

# Typed from the papers, not from the sheets: system, key, figure in base units, paper.
SYSTEM_FIGURES = (
    ("dgx-1-p100", "gpu_count", 8, P100_PAPER),
    ("dgx-1-p100", "nvlink_links_per_gpu", 4, P100_PAPER),
    ("dgx-1-p100", "collective", 60e9, P100_PAPER),
    ("dgx-1-p100", "infiniband_ports", 4, P100_PAPER),
    ("dgx-1-p100", "ethernet_ports", 2, P100_PAPER),
    ("dgx-1-p100", "data_ssds", 4, P100_PAPER),
    ("dgx-1-p100", "data_ssd_size", 1.92e12, P100_PAPER),
    ("dgx-1-p100", "data_raid", 0, P100_PAPER),
    ("dgx-1-p100", "boot_ssds", 1, P100_PAPER),
    ("dgx-1-p100", "boot_ssd_size", 480e9, P100_PAPER),
    ("dgx-1-p100", "memory", 512e9, P100_PAPER),
    ("dgx-1-p100", "cpus", 2, P100_PAPER),
    ("dgx-1-p100", "tdp", 3200, P100_PAPER),
    ("dgx-1-p100", "inlet_lowest", 5, P100_PAPER),
    ("dgx-1-p100", "inlet_highest", 35, P100_PAPER),
    ("dgx-1-v100", "gpu_count", 8, V100_PAPER),
    ("dgx-1-v100", "nvlink_links_per_gpu", 6, V100_PAPER),
    ("dgx-1-v100", "collective", 130e9, V100_PAPER),
    ("dgx-1-v100", "infiniband_ports", 4, V100_PAPER),
    ("dgx-1-v100", "ethernet_ports", 2, V100_PAPER),
    ("dgx-1-v100", "data_ssds", 4, V100_PAPER),
    ("dgx-1-v100", "data_ssd_size", 1.92e12, V100_PAPER),
    ("dgx-1-v100", "data_raid", 0, V100_PAPER),
    ("dgx-1-v100", "boot_ssds", 1, V100_PAPER),
    ("dgx-1-v100", "boot_ssd_size", 480e9, V100_PAPER),
    ("dgx-1-v100", "memory", 512e9, V100_PAPER),
    ("dgx-1-v100", "cpus", 2, KERAS_PAPER),
    ("dgx-1-v100", "tdp", 3500, V100_PAPER),
    ("dgx-1-v100", "inlet_lowest", 5, V100_PAPER),
    ("dgx-1-v100", "inlet_highest", 35, V100_PAPER),
    ("dgx-station-v100", "gpu_count", 4, STATION_PAPER),
    ("dgx-station-v100", "nvlink_links_per_gpu", 4, STATION_PAPER),
    ("dgx-station-v100", "ethernet_ports", 2, STATION_PAPER),
    ("dgx-station-v100", "data_ssds", 3, STATION_PAPER),
    ("dgx-station-v100", "data_ssd_size", 1.92e12, STATION_PAPER),
    ("dgx-station-v100", "data_raid", 0, STATION_PAPER),
    ("dgx-station-v100", "boot_ssds", 1, STATION_PAPER),
    ("dgx-station-v100", "boot_ssd_size", 1.92e12, STATION_PAPER),
    ("dgx-station-v100", "memory", 256e9, STATION_PAPER),
    ("dgx-station-v100", "cpus", 1, STATION_PAPER),
    ("dgx-station-v100", "tdp", 1500, STATION_PAPER),
    ("dgx-station-v100", "supply", 1600, STATION_PAPER),
    ("dgx-station-v100", "inlet_lowest", 10, STATION_PAPER),
    ("dgx-station-v100", "inlet_highest", 30, STATION_PAPER),
)

# System, path, direction, bytes per second, paper.
SYSTEM_BANDWIDTHS = (
    ("dgx-1-p100", "infiniband", "transmit", 12.5e9, P100_PAPER),
    ("dgx-1-p100", "infiniband", "receive", 12.5e9, P100_PAPER),
    ("dgx-1-p100", "network", "transmit", 1.25e9, P100_PAPER),
    ("dgx-1-p100", "network", "receive", 1.25e9, P100_PAPER),
    ("dgx-1-p100", "disk", "read", 2e9, P100_PAPER),
    ("dgx-1-v100", "infiniband", "transmit", 12.5e9, V100_PAPER),
    ("dgx-1-v100", "infiniband", "receive", 12.5e9, V100_PAPER),
    ("dgx-1-v100", "network", "transmit", 1.25e9, V100_PAPER),
    ("dgx-1-v100", "network", "receive", 1.25e9, V100_PAPER),
    ("dgx-1-v100", "disk", "read", 2e9, V100_PAPER),
    ("dgx-station-v100", "network", "transmit", 1.25e9, STATION_PAPER),
    ("dgx-station-v100", "network", "receive", 1.25e9, STATION_PAPER),
)

# GPU as NVML names it, memory in bytes, memory bytes per second, paper.
GPU_MEMORIES = (
    ("Tesla P100-SXM2-16GB", 16e9, 732e9, P100_PAPER),
    ("Tesla V100-SXM2-16GB", 16e9, 900e9, V100_PAPER),
    ("Tesla V100-DGXS-32GB", 32e9, 900e9, STATION_PAPER),
    ("Tesla K40m", 12e9, 288e9, BENCHMARK_PAPER),
    ("Tesla K40c", 12e9, 288e9, BENCHMARK_PAPER),
    ("GeForce GTX TITAN X", 12e9, 336.5e9, BENCHMARK_PAPER),
    ("GeForce GTX 1080", 8e9, 320e9, BENCHMARK_PAPER),
    ("TITAN X (Pascal)", 12e9, 480e9, BENCHMARK_PAPER),
)

# GPU, links, bytes per second of all of them in both directions as the papers quote it, paper.
GPU_NVLINKS = (
    ("Tesla P100-SXM2-16GB", 4, 160e9, P100_PAPER),
    ("Tesla V100-SXM2-16GB", 6, 300e9, V100_PAPER),
    ("Tesla V100-SXM2-32GB", 6, 300e9, V100_PAPER),
    ("Tesla V100-DGXS-32GB", 4, 200e9, STATION_PAPER),
)

# Public data sheets: GPU, memory, memory bytes per second, bytes per second of all NVLinks in both
# directions, PCIe generation; 0 where none is sure.
MODERN_GPUS = (
    ("NVIDIA A100-SXM4-80GB", 80e9, 2039e9, 600e9, 4),
    ("NVIDIA A100-SXM4-40GB", 40e9, 1555e9, 600e9, 4),
    ("A100-PCIE-40GB", 40e9, 1555e9, 600e9, 4),
    ("NVIDIA A100 80GB PCIe", 80e9, 1935e9, 600e9, 4),
    ("NVIDIA H100 80GB HBM3", 80e9, 3350e9, 900e9, 5),
    ("NVIDIA H100 PCIe", 80e9, 2000e9, 600e9, 5),
    ("NVIDIA H100 NVL", 94e9, 3900e9, 600e9, 5),
    ("NVIDIA H200", 141e9, 4800e9, 900e9, 5),
    ("NVIDIA H200 NVL", 141e9, 4800e9, 900e9, 5),
    ("NVIDIA GH200 480GB", 96e9, 4000e9, 900e9, 0),
    ("NVIDIA GH200 144G HBM3e", 144e9, 4900e9, 900e9, 0),
    ("NVIDIA B200", 180e9, 7672e9, 1800e9, 5),
    ("NVIDIA B300 SXM6 AC", 288e9, 7750e9, 1800e9, 0),
    ("NVIDIA GB200", 186e9, 8000e9, 1800e9, 0),
    ("NVIDIA GB300", 288e9, 8000e9, 1800e9, 6),
    ("NVIDIA GB10", 128e9, 273e9, 0, 0),
    ("NVIDIA L4", 24e9, 300e9, 0, 4),
    ("NVIDIA L40S", 48e9, 864e9, 0, 4),
    ("NVIDIA A10", 24e9, 600e9, 0, 4),
    ("NVIDIA A40", 48e9, 696e9, 112.5e9, 4),
    ("NVIDIA A30", 24e9, 933e9, 200e9, 4),
    ("Tesla T4", 16e9, 320e9, 0, 3),
    ("NVIDIA GeForce RTX 4090", 24e9, 1008e9, 0, 4),
    ("NVIDIA GeForce RTX 5090", 32e9, 1792e9, 0, 5),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 96e9, 1792e9, 0, 5),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96e9, 0, 0, 5),
)

# Public data sheets: system, its figures in the order of Reported, InfiniBand bytes per second and
# port; 0 where none is sure.
SHOWN = (
    *("gpu_count", "nvlink_links_per_gpu", "infiniband_ports", "data_ssds", "tdp"),
    *("inlet_lowest", "inlet_highest", "memory"),
)
MODERN_SYSTEMS: tuple[tuple[str, list[float], float], ...] = (
    ("dgx-a100", [8, 12, 8, 8, 6500, 5, 30, 2e12], 25e9),
    ("dgx-a100-320gb", [8, 12, 8, 4, 6500, 5, 30, 1e12], 25e9),
    ("dgx-h100", [8, 18, 8, 8, 10200, 5, 30, 2e12], 50e9),
    ("dgx-h200", [8, 18, 8, 8, 10200, 5, 30, 2e12], 50e9),
    ("dgx-b200", [8, 18, 8, 8, 14300, 5, 30, 2e12], 50e9),
    ("dgx-b300", [8, 18, 8, 8, 0, 0, 0, 2e12], 100e9),
    ("gb200-tray", [4, 18, 4, 0, 0, 0, 0, 960e9], 50e9),
    ("gb300-tray", [4, 18, 4, 0, 0, 0, 0, 960e9], 100e9),
    ("dgx-spark", [1, 0, 0, 0, 0, 0, 0, 128e9], 0),
    ("dgx-station-gb300", [1, 0, 0, 0, 0, 0, 0, 496e9], 0),
    ("hgx-a100", [8, 12, 0, 0, 0, 0, 0, 0], 0),
    ("hgx-h100", [8, 18, 0, 0, 0, 0, 0, 0], 0),
    ("hgx-h200", [8, 18, 0, 0, 0, 0, 0, 0], 0),
    ("hgx-b200", [8, 18, 0, 0, 0, 0, 0, 0], 0),
    ("hgx-b300", [8, 18, 0, 0, 0, 0, 0, 0], 0),
)


@pytest.fixture(scope="module")
def specs() -> Specs:
    return load()


@pytest.mark.parametrize(("system", "key", "figure", "paper"), SYSTEM_FIGURES)
def test_a_system_has_the_papers_figures(
    specs: Specs, system: str, key: str, figure: float, paper: str
) -> None:
    value = specs.systems[system].values[key]
    assert value.base == pytest.approx(figure)
    assert value.source.startswith(f"{paper}, ")


def test_no_paper_figure_is_unchecked(specs: Specs) -> None:
    checked = {(system, key) for system, key, _, _ in SYSTEM_FIGURES}
    stated = {
        (system.name, key)
        for system in specs.systems.values()
        for key, value in system.values.items()
        if value.source.startswith(PAPERS)
    }
    assert stated == checked


@pytest.mark.parametrize("row", SYSTEM_BANDWIDTHS)
def test_a_system_has_the_papers_bandwidths(
    specs: Specs, row: tuple[str, str, str, float, str]
) -> None:
    system, path, direction, speed, paper = row
    bandwidth = specs.systems[system].carries(path, direction)
    assert bandwidth is not None
    assert bandwidth.bytes_per_second == pytest.approx(speed)
    assert bandwidth.source.startswith(f"{paper}, ")
    assert bandwidth.per == {"disk": "array"}.get(path, "port")


def test_what_no_paper_states_is_absent(specs: Specs) -> None:
    for system in specs.systems.values():
        assert system.carries("disk", "write") is None
    station = specs.systems["dgx-station-v100"]
    assert station.carries("disk", "read") is None
    assert station.carries("infiniband", "transmit") is None
    assert "infiniband_ports" not in station.values


@pytest.mark.parametrize(("model", "memory", "speed", "paper"), GPU_MEMORIES)
def test_a_gpu_has_the_papers_memory(
    specs: Specs, model: str, memory: float, speed: float, paper: str
) -> None:
    gpu = specs.gpu(model)
    assert gpu is not None
    assert gpu.memory is not None
    bandwidth = gpu.carries("hbm", "total")
    assert bandwidth is not None
    assert (gpu.memory.base, bandwidth.bytes_per_second) == pytest.approx((memory, speed))
    assert gpu.memory.source.startswith(f"{paper}, ")
    assert bandwidth.source.startswith(f"{paper}, ")
    assert [gpu.values[key].value for key in ("pcie_generation", "pcie_lanes")] == [3, 16]


@pytest.mark.parametrize(("model", "links", "both_ways", "paper"), GPU_NVLINKS)
def test_a_gpu_has_the_papers_nvlinks_in_one_direction(
    specs: Specs, model: str, links: int, both_ways: float, paper: str
) -> None:
    gpu = specs.gpu(model)
    assert gpu is not None
    assert gpu.values["nvlink_links_max"].value == links
    for direction in ("transmit", "receive"):
        link = gpu.carries("nvlink", direction)
        assert link is not None
        assert link.bytes_per_second * links * 2 == pytest.approx(both_ways)
        assert link.source.startswith(f"{paper}, ")
        assert link.per == "link"


@pytest.mark.parametrize(
    ("system", "total"),
    [("dgx-1-p100", 5.86e12), ("dgx-1-v100", 7.2e12), ("dgx-station-v100", 3.6e12)],
)
def test_memory_bandwidths_add_up_to_the_papers_totals(
    specs: Specs, system: str, total: float
) -> None:
    spec = specs.systems[system]
    bandwidth = specs.gpus[spec.gpu].carries("hbm", "total")
    assert bandwidth is not None
    assert spec.gpus * bandwidth.bytes_per_second == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize("model", [model for model, *_ in GPU_MEMORIES[3:]])
def test_single_gpus_have_no_nvlink(specs: Specs, model: str) -> None:
    gpu = specs.gpu(model)
    assert gpu is not None
    assert "nvlink_links_max" not in gpu.values
    assert gpu.carries("nvlink", "transmit") is None
    system = specs.systems[gpu.name]
    assert (system.gpus, system.gpu, system.nvlink_links) == (1, gpu.name, None)


@pytest.mark.parametrize("row", MODERN_GPUS)
def test_a_modern_gpu_has_the_data_sheets_figures(
    specs: Specs, row: tuple[str, float, float, float, int]
) -> None:
    model, memory, speed, linked, generation = row
    gpu = specs.gpu(model)
    assert gpu is not None
    assert gpu.memory is not None
    hbm, link = gpu.carries("hbm", "total"), gpu.carries("nvlink", "receive")
    links = gpu.values["nvlink_links_max"].value if link else 0
    both_ways = 2 * links * link.bytes_per_second if link else 0
    assert gpu.memory.base == pytest.approx(memory)
    assert (hbm.bytes_per_second if hbm else 0) == pytest.approx(speed)
    assert both_ways == pytest.approx(linked)
    lanes = 16 if generation else None
    slot = [gpu.values.get(key) for key in ("pcie_generation", "pcie_lanes")]
    assert [one and one.value for one in slot] == [generation or None, lanes]
    origins = ("[P] ", "[U] ", "measured: ")
    assert all(value.source.startswith(origins) for value in gpu.values.values())


@pytest.mark.parametrize(("name", "figures", "port"), MODERN_SYSTEMS)
def test_a_modern_system_has_the_data_sheets_figures(
    specs: Specs, name: str, figures: list[float], port: float
) -> None:
    system = specs.systems[name]
    infiniband = system.carries("infiniband", "receive")
    assert (infiniband.bytes_per_second if infiniband else 0) == port
    shown = [system.values[key].base if key in system.values else 0 for key in SHOWN]
    assert shown == pytest.approx(figures)
    graph = system.nvlink_graph
    assert (graph and (graph.kind, graph.pairs)) == (("nvswitch", ()) if figures[1] else None)


def test_every_modern_sheet_was_typed_again(specs: Specs) -> None:
    typed = {spec.name for model, *_ in MODERN_GPUS if (spec := specs.gpu(model))}
    typed |= {
        spec.name for model, *_ in (*GPU_MEMORIES, *GPU_NVLINKS) if (spec := specs.gpu(model))
    }
    assert typed == set(specs.gpus)
    old = {name for name, *_ in SYSTEM_FIGURES}
    assert old | {name for name, *_ in MODERN_SYSTEMS} | set(specs.gpus) >= set(specs.systems)


def test_what_the_papers_contradict_is_reported(specs: Specs) -> None:
    volta = specs.systems["dgx-1-v100"]
    assert "512 MB" in volta.values["memory"].note
    assert all("800 Gb/s" in b.note for b in volta.bandwidths if b.path == "infiniband")


def test_every_source_names_a_paper_or_a_public_origin(specs: Specs) -> None:
    sheets: list[SystemSpec | GpuSpec] = [*specs.systems.values(), *specs.gpus.values()]
    cited = [value.source for sheet in sheets for value in sheet.values.values()]
    cited += [bandwidth.source for sheet in sheets for bandwidth in sheet.bandwidths]
    cited += [s.nvlink_graph.source for s in specs.systems.values() if s.nvlink_graph]
    cited += [gpu.models.source for gpu in specs.gpus.values()]
    cited += [s.products.source for s in specs.systems.values() if s.products]
    public = ("[P] ", "[U] ", "measured: ", "a single card")
    origins = (*(f"{paper}, " for paper in PAPERS), *public)
    assert [source for source in cited if not source.startswith(origins)] == []
    assert [source for source in cited if re.search(r"/work|seeds|\.txt", source)] == []
