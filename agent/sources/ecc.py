"""Memory health: ECC errors, remapped rows (Ampere and newer), and retired pages (older GPUs)."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.nvml import number
from agent.metrics import declared_beside
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read
from agent.sources.context import GpuContext

_METRICS = declared_beside(__file__)
ERRORS = _METRICS["dgx_gpu_ecc_errors_total"]
REMAPPED_ROWS = _METRICS["dgx_gpu_remapped_rows_total"]
REMAP_PENDING = _METRICS["dgx_gpu_row_remap_pending"]
REMAP_FAILURE = _METRICS["dgx_gpu_row_remap_failure"]
RETIRED_PAGES = _METRICS["dgx_gpu_retired_pages_total"]
RETIRED_PENDING = _METRICS["dgx_gpu_retired_pages_pending"]

SEVERITIES = {"corrected": 0, "uncorrected": 1}
LIFETIMES = {"volatile": 0, "aggregate": 1}
CAUSES = {"single_bit": 0, "double_bit": 1}
"""`nvmlMemoryErrorType_t`, `nvmlEccCounterType_t`, and `nvmlPageRetirementCause_t` by label."""


def _remapped(device: NvmlDevice, part: int) -> float:
    return number(device.get("RemappedRows")[part], "nvmlDeviceGetRemappedRows")


def _retired(device: NvmlDevice, cause: int) -> float:
    return float(len(device.get("RetiredPages", cause)))


TABLE = (
    *(
        GpuRow(ERRORS, ("TotalEccErrors", s, t), (severity, lifetime))
        for severity, s in SEVERITIES.items()
        for lifetime, t in LIFETIMES.items()
    ),
    GpuRow(REMAPPED_ROWS, partial(_remapped, part=0), ("corrected",)),
    GpuRow(REMAPPED_ROWS, partial(_remapped, part=1), ("uncorrected",)),
    GpuRow(REMAP_PENDING, partial(_remapped, part=2)),
    GpuRow(REMAP_FAILURE, partial(_remapped, part=3)),
    *(GpuRow(RETIRED_PAGES, partial(_retired, cause=n), (cause,)) for cause, n in CAUSES.items()),
    GpuRow(RETIRED_PENDING, "RetiredPagesPendingStatus"),
)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    yield gpu_context.rows("ecc", "health", intervals.ECC, *TABLE)
