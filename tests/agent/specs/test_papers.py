"""The spec sheets against the papers and data sheets, whose figures are typed here again."""

import re
from math import isnan, nan

import pytest

from agent.specs.sheets import GpuSpec, Specs, SystemSpec, load

P100_PAPER = "NVIDIA DGX-1 System Architecture"
V100_PAPER = "NVIDIA DGX-1 With Tesla V100 System Architecture"
STATION_PAPER = "NVIDIA DGX Station Architecture WP-V01"
KERAS_PAPER = "Deep Learning With NVIDIA DGX-1"
BENCHMARK_PAPER = "NVIDIA DGX-1 Supercomputer: Join Our Community-Based Deep Learning Benchmark"
PAPERS = (P100_PAPER, V100_PAPER, STATION_PAPER, KERAS_PAPER, BENCHMARK_PAPER)

# Typed from the papers, not from the sheets: by system, its figures in base units, and bytes per
# second by path and direction.
_FIGURES = (
    "gpu_count ethernet_ports data_ssds boot_ssds data_ssd_size data_raid boot_ssd_size memory "
    "cpus inlet_lowest inlet_highest nvlink_links_per_gpu tdp infiniband_ports collective supply"
)
_ = nan  # no paper states it
_TYPED: dict[str, tuple[float, ...]] = {
    "dgx-1-p100": (8, 2, 4, 1, 1.92e12, 0, 480e9, 512e9, 2, 5, 35, 4, 3200, 4, 60e9, _),
    "dgx-1-v100": (8, 2, 4, 1, 1.92e12, 0, 480e9, 512e9, 2, 5, 35, 6, 3500, 4, 130e9, _),
    "dgx-station-v100": (
        4,
        2,
        3,
        1,
        1.92e12,
        0,
        1.92e12,
        256e9,
        1,
        10,
        30,
        4,
        1500,
        nan,
        nan,
        1600,
    ),
}
SYSTEM_FIGURES = {
    name: {key: one for key, one in zip(_FIGURES.split(), typed, strict=True) if not isnan(one)}
    for name, typed in _TYPED.items()
}
WIRES = {
    (path, way): speed
    for path, speed in (("infiniband", 12.5e9), ("network", 1.25e9))
    for way in ("transmit", "receive")
}
SYSTEM_BANDWIDTHS = {
    "dgx-1-p100": WIRES | {("disk", "read"): 2e9},
    "dgx-1-v100": WIRES | {("disk", "read"): 2e9},
    "dgx-station-v100": {key: speed for key, speed in WIRES.items() if key[0] == "network"},
}
OF_SYSTEM = {"dgx-1-p100": P100_PAPER, "dgx-1-v100": V100_PAPER, "dgx-station-v100": STATION_PAPER}
OF_ANOTHER = {("dgx-1-v100", "cpus"): KERAS_PAPER}

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


@pytest.mark.parametrize("name", SYSTEM_FIGURES)
def test_a_system_has_the_papers_figures_and_no_others(specs: Specs, name: str) -> None:
    system = specs.systems[name]
    stated = {k: one for k, one in system.values.items() if one.source.startswith(PAPERS)}
    assert {key: one.base for key, one in stated.items()} == pytest.approx(SYSTEM_FIGURES[name])
    for key, one in stated.items():
        assert one.source.startswith(f"{OF_ANOTHER.get((name, key), OF_SYSTEM[name])}, ")
    bandwidths = system.bandwidths
    speeds = {key: one.bytes_per_second for key, one in bandwidths.items()}
    assert speeds == pytest.approx(SYSTEM_BANDWIDTHS[name])
    assert all(one.source.startswith(f"{OF_SYSTEM[name]}, ") for one in bandwidths.values())


def test_what_no_paper_states_is_absent(specs: Specs) -> None:
    assert not any(("disk", "write") in system.bandwidths for system in specs.systems.values())
    paper = {
        name
        for name, one in specs.systems.items()
        if one.values["gpu_count"].source.startswith(PAPERS)
    }
    assert paper == set(SYSTEM_FIGURES)


@pytest.mark.parametrize(("model", "memory", "speed", "paper"), GPU_MEMORIES)
def test_a_gpu_has_the_papers_memory(
    specs: Specs, model: str, memory: float, speed: float, paper: str
) -> None:
    gpu = specs.gpu(model)
    assert gpu is not None
    assert "memory" in gpu.values
    bandwidth = gpu.bandwidths["hbm", "total"]
    assert (gpu.values["memory"].base, bandwidth.bytes_per_second) == pytest.approx((memory, speed))
    assert gpu.values["memory"].source.startswith(f"{paper}, ")
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
        link = gpu.bandwidths["nvlink", direction]
        assert link.bytes_per_second * links * 2 == pytest.approx(both_ways)
        assert link.source.startswith(f"{paper}, ")


@pytest.mark.parametrize("model", [model for model, *_ in GPU_MEMORIES[3:]])
def test_single_gpus_have_no_nvlink(specs: Specs, model: str) -> None:
    gpu = specs.gpu(model)
    assert gpu is not None
    assert "nvlink_links_max" not in gpu.values
    assert ("nvlink", "transmit") not in gpu.bandwidths
    system = specs.systems[gpu.name]
    assert (system.gpus, system.gpu, system.nvlink_links) == (1, gpu.name, None)


@pytest.mark.parametrize("row", MODERN_GPUS)
def test_a_modern_gpu_has_the_data_sheets_figures(
    specs: Specs, row: tuple[str, float, float, float, int]
) -> None:
    model, memory, speed, linked, generation = row
    gpu = specs.gpu(model)
    assert gpu is not None
    assert "memory" in gpu.values
    hbm, link = map(gpu.bandwidths.get, (("hbm", "total"), ("nvlink", "receive")))
    links = gpu.values["nvlink_links_max"].value if link else 0
    both_ways = 2 * links * link.bytes_per_second if link else 0
    assert gpu.values["memory"].base == pytest.approx(memory)
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
    infiniband = system.bandwidths.get(("infiniband", "receive"))
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
    assert {*SYSTEM_FIGURES} | {name for name, *_ in MODERN_SYSTEMS} | set(specs.gpus) >= set(
        specs.systems
    )


def test_what_the_papers_contradict_is_reported(specs: Specs) -> None:
    volta = specs.systems["dgx-1-v100"]
    assert "512 MB" in volta.values["memory"].note


def test_every_source_names_a_paper_or_a_public_origin(specs: Specs) -> None:
    sheets: list[SystemSpec | GpuSpec] = [*specs.systems.values(), *specs.gpus.values()]
    cited = [value.source for sheet in sheets for value in sheet.values.values()]
    cited += [bandwidth.source for sheet in sheets for bandwidth in sheet.bandwidths.values()]
    cited += [s.nvlink_graph.source for s in specs.systems.values() if s.nvlink_graph]
    cited += [gpu.models.source for gpu in specs.gpus.values()]
    cited += [s.products.source for s in specs.systems.values() if s.products]
    public = ("[P] ", "[U] ", "measured: ", "a single card")
    origins = (*(f"{paper}, " for paper in PAPERS), *public)
    assert [source for source in cited if not source.startswith(origins)] == []
    assert [source for source in cited if re.search(r"/work|seeds|\.txt", source)] == []
