"""NVML field ids in use: an own table, because names moved between releases of nvidia-ml-py.

Ids 251-273 were renumbered twice, so a symbolic name from one binding asks a different question
of another driver. Each id here says from which driver on it may be asked.
"""

from enum import IntEnum

ALL_LINKS = 0xFFFFFFFF
"""Scope of the NVLink fields that sums over the links of a GPU."""


class FieldId(IntEnum):
    """`nvmlDeviceGetFieldValues` ids with the unit that NVML gives."""

    MEMORY_TEMPERATURE = 82  # degrees Celsius
    NVLINK_DATA_TRANSMITTED = 138  # KiB of payload
    NVLINK_DATA_RECEIVED = 139
    NVLINK_RAW_TRANSMITTED = 140  # KiB on the wire: payload plus protocol
    NVLINK_RAW_RECEIVED = 141
    POWER_CAP_TIME = 74  # ns, as all times below
    SYNC_BOOST_TIME = 76
    BOARD_LIMIT_TIME = 77
    RELIABILITY_TIME = 79
    NVLINK_REPLAYS = 161  # scope: link
    NVLINK_RECOVERIES = 162
    NVLINK_CRC_ERRORS = 163
    RECOVERY_ACTION = 230  # 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset
    SOFTWARE_THERMAL_TIME = 269
    HARDWARE_THERMAL_TIME = 270
    POWER_BRAKE_TIME = 271


SINCE: dict[FieldId, tuple[int, ...]] = {
    FieldId.NVLINK_DATA_TRANSMITTED: (450,),
    FieldId.NVLINK_DATA_RECEIVED: (450,),
    FieldId.NVLINK_RAW_TRANSMITTED: (450,),
    FieldId.NVLINK_RAW_RECEIVED: (450,),
    FieldId.NVLINK_REPLAYS: (520,),
    FieldId.NVLINK_RECOVERIES: (520,),
    FieldId.NVLINK_CRC_ERRORS: (520,),
    FieldId.RECOVERY_ACTION: (570,),
    # Before 580.82 these three ids meant other things.
    FieldId.SOFTWARE_THERMAL_TIME: (580, 82),
    FieldId.HARDWARE_THERMAL_TIME: (580, 82),
    FieldId.POWER_BRAKE_TIME: (580, 82),
}
"""First driver that may be asked; ids not listed are older than every driver supported (R450)."""


def may_ask(field: FieldId, driver: tuple[int, ...]) -> bool:
    """Whether a driver of this version knows the field under this id."""
    return driver >= SINCE.get(field, ())
