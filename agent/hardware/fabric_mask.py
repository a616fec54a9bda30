"""What the NVSwitch fabric reports of a GPU: the health mask of nvmlDeviceGetGpuFabricInfoV
(nvmlGpuFabricInfo_v2_t)."""

from collections.abc import Iterator

HEALTH_SHIFTS = {
    "degraded_bandwidth": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
"""Where in the mask each kind stands, in two bits: 0 not told, 1 true, 2 false."""

CONFIGURATION_SHIFT, CONFIGURATION_RIGHT = 8, 1
"""Where four bits tell what is wrong with the configuration: 0 not told, 1 nothing."""


def health(mask: int) -> Iterator[tuple[str, bool]]:
    """What the mask tells, each kind with whether it holds."""
    for kind, shift in HEALTH_SHIFTS.items():
        if value := mask >> shift & 0x3:
            yield kind, value == 1
    if value := mask >> CONFIGURATION_SHIFT & 0xF:
        yield "incorrect_configuration", value != CONFIGURATION_RIGHT
