"""Intervals of all reads (seconds on the agent's clock), chosen by cost and activity.

The costs are measured (tests/hardware/README.md): a getter takes microseconds, an NVLink counter 3
ms of CPU time per GPU, an energy counter 5 ms, and the counters of 18 links 16 ms.
"""

TICK = 1.0
HOST_AT_REST = 5.0  # disk, NIC, and core counters while no GPU has a process
ACTIVITY_BUSY = 1.0  # GPM while a process uses the GPU
WINDOWS = (
    3.0  # second GPM sample within the tick while NVLink carries data: 2.3 ms of CPU per GPU, ...
)
WINDOW = 0.105  # ... taken this long after the tick; GPM data advance every 0.1 s
ACTIVITY_IDLE = 5.0  # GPM while no process uses the GPU
UTILISATION_BUSY = 1.0  # without GPM, while a process uses the GPU: 22 to 60 us of CPU
UTILISATION_IDLE = 5.0  # without a process; the driver buffers 14 s of 5 Hz samples
NVLINK_TOTALS_BUSY = 1.0  # without GPM, or while GPM shows links at least half used
NVLINK_TOTALS_QUIET = 10.0
POWER_BUFFER = 1.5  # the driver buffers 2.36 s of 20 ms samples, so none is lost
POWER_BUFFER_AT_REST = 3600.0  # no process, and nothing is integrated from the samples
THROTTLE = 5.0
MEDIA = 5.0
FANS = 5.0
MEMORY_TEMPERATURE = 5.0
PROCESSES = 5.0
PCIE_LINK = 5.0
MOUNTS = 5.0
ENERGY = 10.0
CHASSIS = 10.0  # the board firmware may respond slowly
MANAGER = 30.0  # NVSwitch fabric manager
ALLOCATION = 15.0
LINKS = 60.0
ECC = 60.0
SMART = 600.0  # udisksd uses the same interval
TOPOLOGY = 3600.0
RETRY = 10.0  # failed reads, unless due earlier
REDISCOVERY = 10.0  # checks for lost GPUs and the driver
PCIE_CALLS_PER_TICK = 2  # each is a pair of blocking 20 ms calls; GPUs take turns
