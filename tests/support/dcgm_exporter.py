"""Metrics that dcgm-exporter is known to show, and NVIDIA's board 12239 asks: names, units and
queries."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple

_DEFAULT = """
DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_MEM_CLOCK DCGM_FI_DEV_MEMORY_TEMP DCGM_FI_DEV_GPU_TEMP
DCGM_FI_DEV_POWER_USAGE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION DCGM_FI_DEV_PCIE_REPLAY_COUNTER
DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_MEM_COPY_UTIL DCGM_FI_DEV_ENC_UTIL DCGM_FI_DEV_DEC_UTIL
DCGM_FI_DEV_XID_ERRORS DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_RESERVED
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL DCGM_FI_DEV_VGPU_LICENSE_STATUS
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS
DCGM_FI_DEV_ROW_REMAP_FAILURE DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE
DCGM_FI_PROF_DRAM_ACTIVE DCGM_FI_PROF_PCIE_TX_BYTES DCGM_FI_PROF_PCIE_RX_BYTES
"""
DEFAULT = _DEFAULT.split()
"""etc/default-counters.csv of 4.8.3: every active row that is no label."""

OLDER = ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT")
"""Active in older releases of the same file."""

_COMMENTED = """
DCGM_FI_DEV_POWER_VIOLATION DCGM_FI_DEV_THERMAL_VIOLATION DCGM_FI_DEV_SYNC_BOOST_VIOLATION
DCGM_FI_DEV_BOARD_LIMIT_VIOLATION DCGM_FI_DEV_LOW_UTIL_VIOLATION DCGM_FI_DEV_RELIABILITY_VIOLATION
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL DCGM_FI_DEV_ECC_DBE_VOL_TOTAL DCGM_FI_DEV_ECC_SBE_AGG_TOTAL
DCGM_FI_DEV_ECC_DBE_AGG_TOTAL DCGM_FI_DEV_RETIRED_SBE DCGM_FI_DEV_RETIRED_DBE
DCGM_FI_DEV_RETIRED_PENDING DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_BANDWIDTH_L0
DCGM_FI_PROF_SM_ACTIVE DCGM_FI_PROF_SM_OCCUPANCY DCGM_FI_PROF_PIPE_FP64_ACTIVE
DCGM_FI_PROF_PIPE_FP32_ACTIVE DCGM_FI_PROF_PIPE_FP16_ACTIVE
"""
COMMENTED = _COMMENTED.split()
"""Rows that are commented out there and in etc/dcp-metrics-included.csv."""

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


@contextmanager
def answering(page: str) -> Iterator[str]:
    """Return the address of a stand-in for dcgm-exporter that answers with this page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
