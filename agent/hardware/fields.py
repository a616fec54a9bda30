"""NVML field IDs that the agent uses, in a table because nvidia-ml-py releases renumbered them.

IDs 251-273 changed twice, so a symbolic name of another release may query a different field.
`SINCE` contains the first driver version that supports each ID.
"""

from enum import IntEnum

ALL_LINKS = 0xFFFFFFFF  # Scope for the sum of an NVLink field over all links of a GPU


class FieldId(IntEnum):
    """`nvmlDeviceGetFieldValues` IDs in numerical order. The comments contain NVML's units."""

    POWER_CAP_TIME = 74  # ns, like all times below
    SYNC_BOOST_TIME = 76
    BOARD_LIMIT_TIME = 77
    RELIABILITY_TIME = 79
    MEMORY_TEMPERATURE = 82  # degrees Celsius
    NVLINK_DATA_TRANSMITTED = 138  # KiB of payload
    NVLINK_DATA_RECEIVED = 139
    NVLINK_RAW_TRANSMITTED = 140  # KiB on the wire, including protocol overhead
    NVLINK_RAW_RECEIVED = 141
    NVLINK_REPLAYS = 161  # scope: link
    NVLINK_RECOVERIES = 162
    NVLINK_CRC_ERRORS = 163
    NVLINK5_TRANSMITTED = 202  # bytes; the scope is a link for IDs 202 to 221
    NVLINK5_RECEIVED = 204
    NVLINK5_MALFORMED_PACKETS = 206
    NVLINK5_BUFFER_OVERRUNS = 207
    NVLINK5_RECEIVE_ERRORS = 208
    NVLINK5_REMOTE_ERRORS = 209
    NVLINK5_GENERAL_ERRORS = 210
    NVLINK5_INTEGRITY_ERRORS = 211
    NVLINK5_DISCARDS = 212
    NVLINK5_RECOVERIES = 213
    NVLINK5_FAILED_RECOVERIES = 214
    NVLINK5_SYMBOL_ERRORS = 221
    RECOVERY_ACTION = 230  # 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX
    SOFTWARE_THERMAL_TIME = 269
    HARDWARE_THERMAL_TIME = 270
    POWER_BRAKE_TIME = 271


# README.md in this folder explains which NVLink 5 and C2C IDs are not read, and why.
SINCE: dict[FieldId, tuple[int, ...]] = {
    field: since
    for first, last, since in (
        (138, 141, (450,)),  # NVLink bytes
        (161, 163, (520,)),  # NVLink errors
        (202, 221, (560,)),  # NVLink 5
        (230, 230, (570,)),  # GPU recovery action
        (269, 271, (580, 82)),  # had other meanings in older drivers
    )
    for field in FieldId
    if first <= field <= last
}
"""First driver version that supports each ID. All other IDs are supported since R450."""
