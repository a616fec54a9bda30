"""GPU memory: ECC errors, and remapped rows (Ampere and newer) or retired pages (older GPUs)."""

from collections.abc import Iterator

from agent.metrics import declared_beside
from agent.polling.reads import Read
from agent.sources.context import GpuContext

_METRICS = declared_beside(__file__)
ERRORS = _METRICS["dgx_gpu_ecc_errors_total"]


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    return gpu_context.declared("ecc", _METRICS)
