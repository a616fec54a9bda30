"""Metrics that dcgm-exporter is known to show, and NVIDIA's board 12239 asks: names, units and
queries."""

import tomllib
from pathlib import Path
from typing import NamedTuple

FIELDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DEFAULT, OLDER, COMMENTED = FIELDS["default"], FIELDS["older"], FIELDS["commented"]

RENAMED = 22
UNITS_CHANGED = 11
"""Release notes of 4.9.0: 23 default fields, of which one is the label of the driver's version."""


class Panel(NamedTuple):
    """A query of the board, and between what its values must be for H100s that train."""

    title: str
    expr: str
    least: float
    most: float
    whole: bool = False  # one value for the machine, not one for each GPU
    per: float = 1.0  # how many of the unit of 4.9.0 one of the old is


AT = '{Hostname=~"$Hostname", gpu=~"$gpu"}'
GPUS = "by (Hostname, gpu, uuid)"
PARTS = "by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)"
CLOCK = f"max(DCGM_FI_DEV_SM_CLOCK{AT} * 1000000) by (Hostname, UUID, gpu)"
TOTAL = f"sum(max(DCGM_FI_DEV_POWER_USAGE{AT}) by (gpu))"
BOARD = (
    Panel("GPU Temperature", f"max(DCGM_FI_DEV_GPU_TEMP{AT}) {GPUS}", 30, 95),
    Panel("GPU Avg. Temp", f"avg(DCGM_FI_DEV_GPU_TEMP{AT})", 30, 95, whole=True),
    Panel("GPU Power Usage", f"max(DCGM_FI_DEV_POWER_USAGE{AT}) {GPUS}", 200, 800),
    Panel("GPU Power Total", TOTAL, 1600, 6400, whole=True),
    Panel("GPU SM Clocks", CLOCK, 1e9, 2.1e9),
    Panel("GPU Utilization", f"max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{AT}) {PARTS}", 0.5, 1),
    Panel("Tensor Core Utilization", f"max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{AT}) {PARTS}", 0.1, 1),
    Panel(
        "GPU Framebuffer Mem Used",
        f"max(DCGM_FI_DEV_FB_USED{AT}) {PARTS}",
        10_000,
        81_920,
        per=1 << 20,
    ),
)
"""grafana/dcgm-exporter-dashboard.json, gnetId 12239. Memory is in MiB, clocks in hertz."""

VARIABLES = {"Hostname": "DCGM_FI_DEV_FB_FREE", "gpu": 'DCGM_FI_DEV_FB_FREE{Hostname=~"$Hostname"}'}
"""Sources of its variables, by label_values."""


def of_4_9(expr: str, renamed: dict[str, str]) -> str:
    """The same query as a board for 4.9.0 asks it."""
    for before, since in renamed.items():
        expr = expr.replace(f"{before}{{", f"{since}{{")
    return expr.replace(" * 1000000", "").replace("Hostname", "hostname")
