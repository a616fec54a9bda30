"""Intervals of all reads (seconds of the agent's clock): cost follows work.

The prices are measured (tests/hardware/README.md): a getter takes microseconds, an NVLink counter
3 ms of CPU a GPU, an energy counter 5 ms, the counters of eighteen links 16 ms.
"""

TICK = 1.0
HOST_AT_REST = 5.0  # counters of disks, NICs, cores: with GPUs, none of which has a process
ACTIVITY_BUSY = 1.0  # GPM, while a process is on the GPU
WINDOWS = (
    3.0  # GPM once more within the second, while NVLink carries data: 2.3 ms of CPU a GPU, ...
)
WINDOW = 0.105  # ... so long after the tick; it advances every 0.1 s
ACTIVITY_IDLE = 5.0  # GPM, while none is
UTILISATION_BUSY = 1.0  # without GPM, while a process is on the GPU: 22 to 60 us of CPU
UTILISATION_IDLE = 5.0  # while none is: the driver keeps 14 s of 5 Hz samples
NVLINK_TOTALS_BUSY = 1.0  # without GPM, or while GPM shows the links half full
NVLINK_TOTALS_QUIET = 10.0
POWER_BUFFER = 1.5  # the driver keeps 2.36 s of 20 ms samples: read so often, none is lost
POWER_BUFFER_AT_REST = 3600.0  # no process is on the GPU, and nothing is integrated from it
THROTTLE = 5.0
MEDIA = 5.0
FANS = 5.0
MEMORY_TEMPERATURE = 5.0
PROCESSES = 5.0
PCIE_LINK = 5.0
MOUNTS = 5.0
ENERGY = 10.0
CHASSIS = 10.0  # the board's firmware may take its time to answer
MANAGER = 30.0  # of the NVSwitches
ALLOCATION = 15.0
LINKS = 60.0
ECC = 60.0
SMART = 600.0  # udisksd asks a disk as often
TOPOLOGY = 3600.0
RETRY = 10.0  # of a read that failed, if it would not run before
REDISCOVERY = 10.0  # is a lost GPU back, is the driver there again
PCIE_CALLS_PER_TICK = 2  # each pair of blocking 20 ms calls; more GPUs take turns
