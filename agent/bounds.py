"""Bounds of the agent's work and memory, and of its waits for calls that may block: more of each
costs time or memory. None of them is a threshold of a verdict."""

HOUR = 3600.0  # s

LONGEST_NAME = 64
"""Letters of a label that others chose."""

MOST_NAMES = 65_536
"""Most names or numbers in a list of Slurm."""

MOST_ANCESTORS = 64
"""Most ancestors of a process; a longer chain is a loop of reused pids."""

MOST_THREADS, MOST_FOLLOWED, MOST_DESCENDANTS = 5000, 24, 128
"""Most threads of a process that a tick lists, and that it reads; most descendants of a GPU's
processes that it reads."""

MOST_LISTED, LIST_BEGUN, MOST_ASKED = 400, 10, 100
"""Most threads of all processes that a tick lists; threads that the start of a list counts for;
threads of a process that are asked for children at a time."""

MOST_MET, MOST_AT_REST = 64, 32
"""Most processes that a tick looks at, because reading the ancestors of a process takes 0.5 ms;
most processes of a GPU at rest whose bytes a tick reads."""

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
"""Seconds for which the agent waits for a disk when it starts and ends."""

HOURS_SAVED_EVERY = 300.0
"""Seconds between two writes of the hourly sums: a crash loses no more."""
