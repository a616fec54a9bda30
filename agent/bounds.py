"""Bounds of the agent's work and memory, and of its waits for calls that may block: more of each
costs time or memory. None of them is a threshold of a verdict."""

HOUR = 3600.0  # s

LONGEST_NAME = 64
"""Letters of a label that others chose."""

MOST_NAMES = 65_536
"""Names or numbers that one list of Slurm stands for."""

MOST_ANCESTORS = 64
"""Parents of a process, upwards; more is a loop of reused pids."""

MOST_THREADS, MOST_FOLLOWED, MOST_DESCENDANTS = 5000, 24, 128
"""Threads of a process that are listed, and that are read each time; descendants of a GPU's
processes that are read."""

MOST_LISTED, LIST_BEGUN, MOST_ASKED = 400, 10, 100
"""Threads of all processes that are listed in one tick, the number of threads for which the begin
of a list counts, and threads of a process that are asked for children at a time."""

MOST_MET, MOST_AT_REST = 64, 32
"""Processes that are met in a tick: to read the ancestors of a process takes 0.5 ms; and processes
of a GPU at rest whose bytes are read in a tick."""

MOST_LOOK_UPS, LOOK_UP_AT_ONCE, LOOK_UP_LATE = 8, 0.05, 2.0
"""Threads that look into the memory of processes at a time, each of which may block; seconds that
the tick waits for them, and after which a process is judged without that look."""

POWER_SAMPLES = 300
"""Samples of a GPU's power, 20 ms apart: those of 6 s; the driver's buffer holds 2.4 s."""

JOBS_KEPT, RATES_KEPT = 50, 90
"""Ended jobs whose receipts are kept, and values of 10 s of the speed of a running job."""

HOURS_KEPT, MOST_OWNERS, LARGEST_HOUR = 7 * 24, 64, 1 << 18
"""Hours that are kept; jobs per hour that are kept apart, the rest without owner; bytes of its
file."""

DISK_HANGS = 5.0
"""Seconds for which the start and the end wait for a disk."""

HOURS_SAVED_EVERY = 300.0
"""Seconds between two writes of them: a crash loses no more."""
