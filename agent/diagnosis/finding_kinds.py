"""What may be wrong with a machine."""

from enum import StrEnum


class FindingKind(StrEnum):
    """What may be wrong; each with its figures (found, and expected as limit), device and names."""

    SOURCE_DOWN = "source_down"  # device: source
    DRIVER_HANGS = "driver_hangs"
    DRIVER_RELEASED = "driver_released"  # names: why
    GPU_NOT_ANSWERING = "gpu_not_answering"  # metrics; names: why
    GPUS_MISSING = "gpus_missing"  # gpus; names: indices that do not answer
    GPUS_UNEXPECTED = "gpus_unexpected"  # gpus
    RECOVERY_NEEDED = "recovery_needed"  # action
    REMAP_FAILURE = "remap_failure"
    REMAP_PENDING = "remap_pending"
    PAGES_PENDING = "pages_pending"
    ROWS_NEAR = "rows_near"  # rows
    PAGES_NEAR = "pages_near"  # pages
    ECC_UNCORRECTED = "ecc_uncorrected"  # errors
    ECC_LIFETIME = "ecc_lifetime"  # errors
    XID = "xid"  # times; device: code; names: meaning
    FABRIC_SERVICE = "fabric_service"
    FABRIC_STATE = "fabric_state"  # state
    FABRIC_HEALTH = "fabric_health"  # device: kind
    SWITCH_ERROR = "switch_error"  # times; device: switch; names: code
    LINKS_DOWN = "links_down"  # links; names: those down
    LINK_ERRORS = "link_errors"  # errors; device: link
    STRAY_LINKS = "stray_links"  # links; names: where they end, where they should, links
    WRONG_PAIRS = "wrong_pairs"  # links of each pair of GPUs
    PCIE_LANES = "pcie_lanes"  # lanes
    PCIE_GENERATION = "pcie_generation"  # generation
    PCIE_SLOT = "pcie_slot"  # generation, lanes, speed
    PORT_SPEED = "port_speed"  # speed; device: port; names: path
    TOO_HOT = "too_hot"  # beyond
    CLOCKS_HELD_DOWN = "clocks_held_down"  # names: reasons
    ARRAY_DEGRADED = "array_degraded"  # members; device: array
    DISK_FAULT = "disk_fault"  # device: disk; names: kind
    CHASSIS_FAULT = "chassis_fault"  # device: sensor; names: kind
    CLOCK_STEPPED = "clock_stepped"  # times
    LIMIT_UNUSED = "limit_unused"  # device; names: path, direction
    LOG_CLOSED = "log_closed"  # names: why
    VALUES_ABSENT = "values_absent"  # metrics; names: reason
