"""Memory health: ECC errors, remapped rows (Ampere and newer), retired pages (older GPUs)."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.nvml import number
from agent.model import GPU_LABELS, GpuMetric, InDefault, event_counter
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read
from agent.ranges import Range
from agent.sources.context import GpuContext

ERROR_COUNT, COUNT = Range(0, 1e12), Range(0, 1e5)

ERRORS = event_counter(
    "dgx_gpu_ecc_errors_total",
    "ECC errors: corrected or uncorrected; volatile since the driver was loaded, aggregate over "
    "the GPU's life.",
    "nvmlDeviceGetTotalEccErrors",
    (*GPU_LABELS, "severity", "lifetime"),
    possible=ERROR_COUNT,
    shown=InDefault.MOVED,
    parts=("severity", "lifetime"),
    which=lambda labels: "uncorrected" in labels,
)
REMAPPED_ROWS = event_counter(
    "dgx_gpu_remapped_rows_total",
    "Memory rows replaced by spares over the GPU's life, after corrected or uncorrected errors.",
    "nvmlDeviceGetRemappedRows",
    (*GPU_LABELS, "severity"),
    possible=COUNT,
    shown=InDefault.MOVED,
    parts=("severity",),
    which=lambda labels: "uncorrected" in labels,
)
REMAP_PENDING = GpuMetric.flag(
    "dgx_gpu_row_remap_pending",
    "1 while a row waits for a GPU reset to be remapped.",
    "nvmlDeviceGetRemappedRows",
    step=0,
)
REMAP_FAILURE = GpuMetric.flag(
    "dgx_gpu_row_remap_failure",
    "1 once a row could not be remapped: the GPU qualifies for replacement.",
    "nvmlDeviceGetRemappedRows",
    step=0,
)
RETIRED_PAGES = event_counter(
    "dgx_gpu_retired_pages_total",
    "Memory pages retired over the GPU's life (Kepler to Volta), by cause.",
    "nvmlDeviceGetRetiredPages",
    (*GPU_LABELS, "cause"),
    possible=COUNT,
    shown=InDefault.MOVED,
    parts=("cause",),
    which=lambda labels: "double_bit" in labels,
)
RETIRED_PENDING = GpuMetric.flag(
    "dgx_gpu_retired_pages_pending",
    "1 while pages wait for the driver to be loaded again to be retired (Kepler to Volta).",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    step=0,
)

SEVERITIES = {"corrected": 0, "uncorrected": 1}
LIFETIMES = {"volatile": 0, "aggregate": 1}
CAUSES = {"single_bit": 0, "double_bit": 1}
"""Labels to `nvmlMemoryErrorType_t`, `nvmlEccCounterType_t`, `nvmlPageRetirementCause_t`."""


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
