"""Limits for the agent's work and memory use, and for waiting for calls that may block. Raising a
limit costs time or memory. None of the limits is a threshold for verdicts."""

HOUR = 3600.0  # s

LONGEST_NAME = 64
"""Maximum number of characters of a label value that comes from outside the agent."""

MOST_NAMES = 65_536
"""Maximum number of names or numbers in a list from Slurm."""

MOST_ANCESTORS = 64
"""Maximum number of ancestors of a process. A longer chain is a loop caused by reused PIDs."""

MOST_THREADS, MOST_FOLLOWED, MOST_DESCENDANTS = 5000, 24, 128
"""Maximum number of threads per process that a tick lists, maximum number of threads per process
that a tick reads, and maximum number of descendants of a GPU's processes that a tick reads."""

MOST_LISTED, LIST_BEGUN, MOST_ASKED = 400, 10, 100
"""Maximum number of threads that a tick lists for all processes, cost of starting a list (in
threads), and maximum number of threads per process that are checked for children at a time."""

MOST_MET, MOST_AT_REST = 64, 32
"""Maximum number of new processes that a tick examines, because reading a process's ancestors takes
0.5 ms, and maximum number of idle processes per GPU for which a tick reads I/O bytes."""

MOST_LOOK_UPS, LOOK_UP_AT_ONCE, LOOK_UP_LATE = 8, 0.05, 2.0
"""Maximum number of concurrent threads that read process memory (each may block), seconds that a
tick waits for these threads, and seconds after which a process is judged without the result."""

POWER_SAMPLES = 300
"""Number of power samples per GPU at intervals of 20 ms (6 s). The driver's buffer has 2.4 s."""

JOBS_KEPT, RATES_KEPT = 50, 90
"""Number of ended jobs whose receipts are kept, and number of 10 s rates kept per running job."""

HOURS_KEPT, MOST_OWNERS = 7 * 24, 64
"""Number of hours kept, and maximum number of jobs that are recorded separately in an hour (others
are summed without an owner)."""

DISK_HANGS = 5.0
"""Seconds that the agent waits for a disk at startup and shutdown."""

HOURS_SAVED_EVERY = 300.0
"""Seconds between writes of the hourly sums: the maximum time lost in a crash."""
