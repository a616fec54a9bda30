"""Intervals of all reads in seconds on the agent's clock. Expensive reads run less often.

Measured costs (tests/hardware/README.md): a getter takes microseconds, an NVLink counter 3 ms of
CPU time per GPU, an energy counter 5 ms, and the counters of 18 links 16 ms.
"""

TICK = 1.0
HOST_AT_REST = 5.0  # counters of disks, NICs, and cores while no GPU has a process
ACTIVITY_BUSY = 1.0  # GPM while a process is on the GPU
WINDOWS = 3.0  # second GPM sample in a tick with NVLink traffic: 2.3 ms of CPU time per GPU, ...
WINDOW = 0.105  # ... taken this time after the tick; GPM data is refreshed every 0.1 s
ACTIVITY_IDLE = 5.0  # GPM while no process is on the GPU
UTILISATION_BUSY = 1.0  # without GPM, with a process on the GPU: 22 to 60 us of CPU time
UTILISATION_IDLE = 5.0  # without a process; the driver stores 14 s of 5 Hz samples
NVLINK_TOTALS_BUSY = 1.0  # without GPM, or while links are half used according to GPM
NVLINK_TOTALS_QUIET = 10.0
POWER_BUFFER = 1.5  # the driver stores 2.36 s of 20 ms samples, so none is lost
POWER_BUFFER_AT_REST = 3600.0  # without a process, if the samples are not integrated
THROTTLE = 5.0
MEDIA = 5.0
FANS = 5.0
MEMORY_TEMPERATURE = 5.0
PROCESSES = 5.0
PCIE_LINK = 5.0
MOUNTS = 5.0
ENERGY = 10.0
CHASSIS = 10.0  # the firmware of the board may be slow
MANAGER = 30.0  # Fabric Manager of NVSwitches
ALLOCATION = 15.0
LINK_STATE = 5.0  # NICs, ports, and arrays
LINKS = 60.0
ECC = 60.0
SMART = 600.0  # udisksd uses the same interval
TOPOLOGY = 3600.0
RETRY = 10.0  # failed reads that are not due earlier
REDISCOVERY = 10.0  # checks for lost GPUs and the driver
PCIE_CALLS_PER_TICK = 2  # each is two blocking 20 ms calls; GPUs take turns
