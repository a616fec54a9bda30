"""Memory health: ECC errors, remapped rows (Ampere and newer), and retired pages (older GPUs)."""

from collections.abc import Iterator

from agent.metrics import declared_beside
from agent.polling.reads import Read
from agent.sources.context import GpuContext

_METRICS = declared_beside(__file__)
ERRORS = _METRICS["dgx_gpu_ecc_errors_total"]
REMAPPED_ROWS = _METRICS["dgx_gpu_remapped_rows_total"]
REMAP_PENDING = _METRICS["dgx_gpu_row_remap_pending"]
REMAP_FAILURE = _METRICS["dgx_gpu_row_remap_failure"]
RETIRED_PAGES = _METRICS["dgx_gpu_retired_pages_total"]
RETIRED_PENDING = _METRICS["dgx_gpu_retired_pages_pending"]


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    return gpu_context.declared("ecc", _METRICS)
