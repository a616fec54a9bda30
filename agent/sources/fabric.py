"""The NVSwitch fabric as each GPU reports it: the GPU's registration state, and faults."""

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Any

from agent.hardware.device import NvmlDevice
from agent.metrics import declared_beside
from agent.model import Absent, Reason, checked
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput
from agent.ranges import Range
from agent.sources.context import GpuContext

_METRICS = declared_beside(__file__)
FABRIC_STATE = _METRICS["dgx_nvlink_fabric_state"]
HEALTH = _METRICS["dgx_nvlink_fabric_health"]

COMPLETED = 3
MASK, ERRORS = Range(0, 0xFFFFFFFE), Range(0, 999)
REGISTRATION = "registration_error"

MASK_PARTS = _METRICS.kinds[HEALTH.name]
UNHEALTHY, HEALTHY = "unhealthy", 1
"""UNHEALTHY: kind of fault if only the summary reports one. HEALTHY: value of a healthy summary."""

ANSWERS = (
    ("GpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
    ("GpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
    ("GpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
"""NVML calls for the fabric info, each with its structure, latest version first."""


def health(mask: int, summary: int) -> dict[str, bool]:
    """Return the kinds of fabric faults that the driver can report, and whether each is present."""
    found = {
        kind: value != healthy
        for kind, (shift, bits, healthy) in MASK_PARTS.items()
        if (value := mask >> shift & bits)
    }
    if summary:
        found[UNHEALTHY] = summary != HEALTHY and not any(found.values())
    return found


def _asked(device: NvmlDevice) -> Any:
    """Return the fabric info in the latest version that the driver supports, or raise Absent."""
    for call, structure in ANSWERS:
        try:
            info = getattr(device.nvml.library, structure)()
            device.get(call, ctypes.byref(info))
        except Absent as absent:
            if absent.reason is not Reason.DRIVER:
                raise
        else:
            return info
    raise Absent(Reason.DRIVER, "nvmlDeviceGetGpuFabricInfo: not in this driver or library")


def _fabric(device: NvmlDevice, out: ReadOutput) -> None:
    device.links()  # raises Absent if there are no links
    info = _asked(device)
    if not info.state:
        raise Absent(Reason.UNSUPPORTED, "nvmlDeviceGetGpuFabricInfoV: no fabric for this GPU")
    out.add(FABRIC_STATE, info.state)
    try:
        mask = int(checked(getattr(info, "healthMask", 0), MASK, "healthMask"))
        kinds = health(mask, getattr(info, "healthSummary", 0))
        if info.state == COMPLETED:
            kinds[REGISTRATION] = checked(info.status, ERRORS, "status of the registration") != 0
    except Absent as absent:
        out.absent(HEALTH, absent)
        return
    for kind, holds in kinds.items():
        out.add(HEALTH, holds, kind)
    if not kinds:
        why = "nvmlDeviceGetGpuFabricInfoV: the mask reports nothing"
        out.absent(HEALTH, Absent(Reason.UNSUPPORTED, why))


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    run = partial(_fabric, gpu_context.device)
    yield gpu_context.read("nvlink", "fabric", (FABRIC_STATE, HEALTH), run, intervals.LINKS)
