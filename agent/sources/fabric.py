"""The NVSwitch fabric as each GPU reports it: whether it joined, and what is wrong."""

import ctypes
from collections.abc import Iterator
from functools import partial
from typing import Any

from agent.hardware.device import NvmlDevice
from agent.model import GPU_LABELS, Absent, GpuMetric, InDefault, Reason, checked, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput
from agent.ranges import FLAG, Range
from agent.sources.context import GpuContext

STATE = GpuMetric.gauge(
    "dgx_nvlink_fabric_state",
    "Registration with the NVSwitch fabric: 1 not started, 2 in progress, 3 completed. 2 for long "
    "means that the Fabric Manager does not run.",
    "nvmlDeviceGetGpuFabricInfoV",
    possible=Range(0, 15),
    step=0,
)
HEALTH = gauge(
    "dgx_nvlink_fabric_health",
    "1 while the fabric reports this kind of problem of the GPU, 0 while it reports that there is "
    "none: degraded bandwidth, routes that recover or are unhealthy, recovery from a timeout, "
    "incorrect configuration, a registration that completed with an error.",
    "healthMask and status of nvmlDeviceGetGpuFabricInfoV (driver 550 and newer)",
    (*GPU_LABELS, "kind"),
    FLAG,
    step=0,
    shown=InDefault.MOVED,
    parts=("kind",),
)

COMPLETED = 3
MASK, ERRORS = Range(0, 0x7FFFFFFF), Range(0, 999)
REGISTRATION = "registration_error"

MASK_SHIFTS = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
"""Shift of each kind in the mask, of two bits: 0 not reported, 1 true, 2 false."""

CONFIGURATION_SHIFT, CONFIGURATION_RIGHT = 8, 1
"""Shift of the four bits on a wrong configuration: 0 not reported, 1 correct."""

ANSWERS = (
    ("GpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
    ("GpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
    ("GpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
"""Calls and structures, the newest first: drivers know them up to their own version."""


def health(mask: int) -> Iterator[tuple[str, bool]]:
    """Return each kind that the mask reports, with its value."""
    for kind, shift in MASK_SHIFTS.items():
        if (value := mask >> shift & 0x3) in {1, 2}:
            yield kind, value == 1
    if value := mask >> CONFIGURATION_SHIFT & 0xF:
        yield "incorrect_configuration", value != CONFIGURATION_RIGHT


def _asked(device: NvmlDevice) -> Any:
    """The newest answer that the driver knows; raises Absent."""
    refusal = Absent(Reason.DRIVER, "nvmlDeviceGetGpuFabricInfo: not in this library")
    for call, structure in ANSWERS:
        try:
            info = getattr(device.nvml.library, structure)()
            device.get(call, ctypes.byref(info))
        except AttributeError:  # a binding that does not have it yet, or any more
            continue
        except Absent as absent:
            if absent.reason is not Reason.DRIVER:
                raise
            refusal = absent.without_traceback()
        else:
            return info
    raise refusal


def _fabric(device: NvmlDevice, out: ReadOutput) -> None:
    device.links()  # raises where there are none
    info = _asked(device)
    if not info.state:
        raise Absent(Reason.UNSUPPORTED, "nvmlDeviceGetGpuFabricInfoV: no fabric for this GPU")
    out.add(STATE, info.state)
    mask = int(checked(getattr(info, "healthMask", 0), MASK, "healthMask"))
    kinds = dict(health(mask))
    if info.state == COMPLETED:
        kinds[REGISTRATION] = checked(info.status, ERRORS, "status of the registration") != 0
    for kind, holds in kinds.items():
        out.add(HEALTH, holds, kind)
    if not kinds:
        why = "nvmlDeviceGetGpuFabricInfoV: the mask reports nothing"
        out.absent(HEALTH, Absent(Reason.UNSUPPORTED, why))


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    run = partial(_fabric, gpu_context.device)
    yield gpu_context.read("nvlink", "fabric", (STATE, HEALTH), run, intervals.LINKS)
