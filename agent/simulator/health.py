"""Health of the parts of a simulated machine, as driver and kernel report it."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class GpuHealth:
    """One GPU. Rates are errors a second."""

    recovery: int = 0  # what the driver asks for
    rows_pending: bool = False
    pages_pending: bool = False
    rows: int = 0  # remapped after uncorrected errors
    pages: int = 0  # retired after double-bit errors
    corrected: float = 0.0
    replays: float = 0.0
    fabric_state: int = 3  # completed
    fabric_status: int = 0  # NVML's code with which it completed
    fabric_mask: int = 0xAA | 1 << 8  # four kinds false, nothing wrong with the configuration


@dataclass(slots=True)
class HostHealth:
    """The rest of the box."""

    fabric_service: bool = True
    dead_disks: set[str] = field(default_factory=set)
    hot_disks: set[str] = field(default_factory=set)
    failing_disks: set[str] = field(default_factory=set)  # by SMART
    damaged: set[str] = field(default_factory=set)  # volumes with errors in their file systems
    lost_members: int = 0  # of the array that holds the data
    fan_failed: bool = False
    supply_failed: bool = False
    port_down: bool = False  # the first InfiniBand port
    symbol_errors: float = 0.0  # a second, of that port
