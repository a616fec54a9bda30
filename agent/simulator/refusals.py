"""What a real machine refuses: by driver version, architecture, product, link, MIG.

Return codes are NVML's; 0 means that the question is answered.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from agent.simulator.driver import Driver
from agent.simulator.gpu_models import (
    ADA,
    AMPERE,
    BLACKWELL,
    HOPPER,
    KEPLER,
    MAXWELL,
    PASCAL,
    VOLTA,
    GpuModel,
)

ANSWERED, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 2, 3
UNINITIALIZED, NO_PERMISSION, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND = 1, 4, 6, 10, 13
GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 15, 25, 999

ALL_LINKS = 0xFFFFFFFF
LINK_SLOTS = 18
"""Links that the driver's tables have room for; beyond, a link number is an invalid argument."""


class Question(NamedTuple):
    """Who is asked, in which state."""

    model: GpuModel
    driver: Driver
    mig: bool = False


Test = Callable[[Question], bool]


def _from(architecture: int) -> Test:
    return lambda a: a.model.architecture >= architecture


def _whole(architecture: int) -> Test:
    """From this architecture on, and not for the whole GPU while MIG is on."""
    return lambda a: a.model.architecture >= architecture and not a.mig


def _linked(a: Question) -> bool:
    return a.model.links is not None


def _ecc(a: Question) -> bool:
    return a.model.ecc


def _volatile_ecc(a: Question) -> bool:
    """Not of a whole GPU under MIG (nvml.h, note on nvmlDeviceGetMemoryErrorCounter; nvidia-smi -q
    of an A100: NVIDIA/nvidia-docker issue 1473)."""
    return a.model.ecc and not a.mig


def _fan(a: Question) -> bool:
    return a.model.fan


def _remaps(a: Question) -> bool:
    return a.model.remaps and not a.mig


def _divides(a: Question) -> bool:
    return a.model.divides


def _slot(a: Question) -> bool:
    return a.model.architecture >= MAXWELL and a.model.slot and not a.mig


def _own_memory(a: Question) -> bool:
    """A GB10 shares the host's: its driver shows neither its size nor a power limit (nvidia-smi of
    a DGX Spark)."""
    return not a.model.shared_memory


def _memory_temperature(a: Question) -> bool:
    return a.model.architecture >= VOLTA and a.model.hbm


def _gpm(a: Question) -> bool:
    return a.model.gpm and not a.mig


def _fifth_links(a: Question) -> bool:
    return _linked(a) and a.model.architecture >= BLACKWELL


def _c2c(a: Question) -> bool:
    return a.model.c2c is not None


def _retires_pages(a: Question) -> bool:
    return a.model.ecc and a.model.architecture <= VOLTA


def _counts_nvlink(a: Question) -> bool:
    """Payload counters. Drivers after 460 refuse them on GPUs without a GSP processor."""
    return _linked(a) and (a.model.architecture >= AMPERE or a.driver < (465,))


def _counts_wire(a: Question) -> bool:
    return _counts_nvlink(a) and a.model.architecture >= VOLTA


def _old_link_errors(a: Question) -> bool:
    return _linked(a) and a.model.architecture < HOPPER


def _new_link_fields(a: Question) -> bool:
    return _linked(a) and a.model.architecture >= AMPERE


def _link_errors(a: Question) -> bool:
    """Of the links up to the fourth generation (nvml.h at id 161)."""
    return _new_link_fields(a) and a.model.architecture < BLACKWELL


def _moved_violations(a: Question) -> bool:
    """Ids 251-253 counted thermal time in R575 only; afterwards they moved to 269-271."""
    return a.driver[0] == 575 and a.model.architecture >= VOLTA


SYMBOLS: dict[str, Driver] = {
    "nvmlDeviceGetMemoryInfo_v2": (510,),
    "nvmlDeviceGetComputeRunningProcesses": (510,),
    "nvmlDeviceGetComputeRunningProcesses_v2": (455,),
    "nvmlDeviceGetGraphicsRunningProcesses": (510,),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": (455,),
    "nvmlDeviceGetCurrentClocksEventReasons": (535,),
    "nvmlDeviceGetMemoryBusWidth": (510,),
    "nvmlDeviceGetMarginTemperature": (570,),
    "nvmlDeviceGetTemperatureV": (575,),
    "nvmlDeviceGetJpgUtilization": (535,),
    "nvmlDeviceGetOfaUtilization": (535,),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (470,),
    "nvmlDeviceGetGpuFabricInfoV": (550,),
    "nvmlDeviceGetGpuFabricInfo": (525,),
    "nvmlGpmQueryDeviceSupport": (520,),
    "nvmlGpmSampleAlloc": (520,),
    "nvmlGpmSampleFree": (520,),
    "nvmlGpmSampleGet": (520,),
    "nvmlGpmMetricsGet": (520,),
    "nvmlGpmMigSampleGet": (520,),
    "nvmlDeviceGetPlatformInfo": (570,),
    "nvmlEventSetRegisterGpuOperationalEvents_v1": (615,),
    "nvmlEventSetWait_v3": (615,),
    "nvmlEventSetGetContextCount_v1": (615,),
    "nvmlEventSetGetContextInfo_v1": (615,),
    "nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1": (615,),
}
"""First driver whose library has the function; those not listed are in all of them."""

DEVICE: dict[str, Test] = {
    "nvmlDeviceGetSerial": lambda a: a.model.datacentre,
    "nvmlDeviceGetMigMode": _divides,
    "nvmlDeviceGetUtilizationRates": _whole(KEPLER),
    "nvmlDeviceGetDecoderUtilization": _whole(KEPLER),
    "nvmlDeviceGetEncoderUtilization": _whole(KEPLER),
    "nvmlDeviceGetJpgUtilization": _whole(AMPERE),
    "nvmlDeviceGetOfaUtilization": _whole(AMPERE),
    "nvmlDeviceGetNumFans": _fan,
    "nvmlDeviceGetFanSpeed_v2": _fan,
    "nvmlDeviceGetTotalEnergyConsumption": _from(VOLTA),
    "nvmlDeviceGetMarginTemperature": _from(ADA),
    "nvmlDeviceGetMemoryInfo": _own_memory,
    "nvmlDeviceGetMemoryInfo_v2": _own_memory,
    "nvmlDeviceGetEnforcedPowerLimit": _own_memory,
    "nvmlDeviceGetPowerManagementDefaultLimit": _own_memory,
    "nvmlDeviceGetPlatformInfo": _fifth_links,
    "nvmlDeviceGetPcieThroughput": _slot,
    "nvmlDeviceGetTotalEccErrors": _ecc,
    "nvmlDeviceGetRemappedRows": _remaps,
    "nvmlDeviceGetRetiredPages": _retires_pages,
    "nvmlDeviceGetRetiredPagesPendingStatus": _retires_pages,
    "nvmlDeviceGetProcessUtilization": _whole(MAXWELL),
    "nvmlDeviceGetNvLinkState": _linked,
    "nvmlDeviceGetNvLinkRemotePciInfo": _linked,
    "nvmlDeviceGetNvLinkRemoteDeviceType": _linked,
    "nvmlDeviceGetNvLinkErrorCounter": lambda a: _linked(a) and not _fifth_links(a),
    "nvmlDeviceGetGpuFabricInfoV": lambda a: _from(HOPPER)(a) and _linked(a),
    "nvmlDeviceGetGpuFabricInfo": lambda a: _from(HOPPER)(a) and _linked(a),
    "nvmlDeviceGetMaxMigDeviceCount": _divides,
    "nvmlDeviceGetMigDeviceHandleByIndex": _divides,
    "nvmlGpmSampleGet": _gpm,
    "nvmlGpmMigSampleGet": lambda a: a.model.gpm and a.mig,
}
"""Which GPUs answer; functions not listed are answered by all."""

OF_ROOT = frozenset(
    f"nvmlDeviceGet{call}"
    for call in (
        *("MemoryInfo", "MemoryInfo_v2"),
        *("ComputeRunningProcesses", "ComputeRunningProcesses_v2"),
        *("GraphicsRunningProcesses", "GraphicsRunningProcesses_v2"),
    )
)
"""What of a whole GPU under MIG is shown to root alone."""


class FieldRule(NamedTuple):
    """Since which driver a field id is known, and which GPUs answer it."""

    since: Driver
    answers: Test


def _rules(*table: tuple[Iterable[int], Driver, Test]) -> dict[int, FieldRule]:
    return {i: FieldRule(since, answers) for ids, since, answers in table for i in ids}


FIELDS: dict[int, FieldRule] = _rules(
    ((1, 2, 5, 6), (450,), _ecc),
    ((3, 4), (450,), _volatile_ecc),
    ((29, 30, 31), (450,), _retires_pages),
    (range(32, 60), (450,), _old_link_errors),
    (range(74, 82), (450,), _from(PASCAL)),
    ((82,), (450,), _memory_temperature),
    ((83,), (450,), _from(VOLTA)),
    ((*range(84, 91), *range(132, 138)), (450,), _old_link_errors),
    ((91,), (450,), _linked),
    ((94, 95), (450,), _from(KEPLER)),
    (range(96, 120), (450,), _old_link_errors),
    ((138, 139), (450,), _counts_nvlink),
    ((140, 141), (450,), _counts_wire),
    (range(142, 146), (450,), _remaps),
    ((146, 147), (450,), _new_link_fields),
    ((161, 162, 163), (520,), _link_errors),
    ((164, 165, 166), (525,), _new_link_fields),
    ((169, *range(173, 183)), (535,), _from(HOPPER)),
    ((170, 171, 172), (525,), _c2c),
    ((185,), (535,), _from(ADA)),
    ((186,), (535,), _from(KEPLER)),
    ((187, 188, 189, 190, 192), (535,), _own_memory),
    ((191,), (535,), _from(VOLTA)),
    (range(193, 197), (550,), _from(ADA)),
    ((197, 198), (555,), _from(HOPPER)),
    ((202, 204, *range(206, 216), *range(219, 223)), (560,), _fifth_links),
    ((230,), (570,), _from(PASCAL)),
    ((231, 232, 233, 234), (570,), _c2c),
    ((251, 252, 253), (575,), _moved_violations),
    ((269, 270, 271), (580, 82), _from(PASCAL)),
    ((301, 302), (580, 82), _remaps),
    ((303, 304, 307), (610,), _from(HOPPER)),
)

LAST_ID = (
    (450, 147),
    (470, 160),
    (520, 163),
    (525, 172),
    (535, 192),
    (550, 196),
    (555, 204),
    (560, 225),
    (570, 250),
    (575, 268),
    (580, 273),
    (590, 288),
    (595, 302),
    (610, 307),
)
"""Branch and the last field id that it knows of; what is newer is an invalid argument."""

FIFTH = frozenset(range(201, 223))
"""Counters of NVLink 5: of one link, and of all at once."""

PER_LINK = FIFTH | {138, 139, 140, 141, 146, 161, 162, 163, 164, 165, 166}
"""Fields whose scope is a link."""

SUMMED = FIFTH | {138, 139, 140, 141}
"""Those that take all links at once too."""

PER_C2C = frozenset((171, 172, *range(231, 235)))
"""Fields whose scope is a link to the CPU."""

GPU_SCOPE_ONLY = frozenset(range(185, 193))
"""Power fields: scope 0 is the GPU, 1 its module with a CPU, where there is one."""

MODULE = 1


def symbol_code(function: str, driver: Driver) -> int:
    """Whether the driver's library has this function."""
    return ANSWERED if driver >= SYMBOLS.get(function, ()) else FUNCTION_NOT_FOUND


def device_code(function: str, asked: Question) -> int:
    """Whether this GPU answers this function; who asks is not root."""
    if asked.mig and function in OF_ROOT:
        return NO_PERMISSION
    test = DEVICE.get(function)
    return ANSWERED if test is None or test(asked) else NOT_SUPPORTED


def field_code(field: int, scope: int, asked: Question) -> int:
    """The return code of one entry of `nvmlDeviceGetFieldValues`."""
    rule = FIELDS.get(field)
    if rule is None:
        return NOT_SUPPORTED if 0 < field <= last_id(asked.driver) else INVALID_ARGUMENT
    if asked.driver < rule.since:
        return NOT_SUPPORTED if field <= last_id(asked.driver) else INVALID_ARGUMENT
    if not rule.answers(asked):
        return NOT_SUPPORTED
    return _scope_code(field, scope, asked)


def _scope_code(field: int, scope: int, asked: Question) -> int:
    if field in PER_LINK and not (field in SUMMED and scope == ALL_LINKS):
        return link_code(scope, asked)
    if field in PER_C2C:
        links = asked.model.c2c.number if asked.model.c2c else 0
        return ANSWERED if scope < links else INVALID_ARGUMENT
    if field in GPU_SCOPE_ONLY and scope == MODULE and _c2c(asked):
        return ANSWERED
    if field in GPU_SCOPE_ONLY and scope:
        return INVALID_ARGUMENT if scope == ALL_LINKS else NOT_SUPPORTED
    return ANSWERED


def link_code(link: int, asked: Question) -> int:
    """Whether this GPU has this link."""
    count = asked.model.links.number if asked.model.links else 0
    if 0 <= link < count:
        return ANSWERED
    return NOT_SUPPORTED if 0 <= link < LINK_SLOTS else INVALID_ARGUMENT


def last_id(driver: Driver) -> int:
    """The highest field id that a driver knows."""
    return max(last for branch, last in LAST_ID if branch <= driver[0])


EVENTS_OLD, EVENTS_ECC, EVENTS_NEW = 0x18, 0x1B, 0xFF9F


def supported_events(model: GpuModel) -> int:
    """Bits of the events that this GPU may be registered for."""
    if model.architecture >= AMPERE:
        return EVENTS_NEW
    return EVENTS_ECC if model.ecc else EVENTS_OLD
