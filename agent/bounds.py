"""Limits on the agent's work, memory use, and waits for calls that may block. Raising a limit costs
time or memory; none of the limits is a verdict threshold."""

HOUR = 3600.0  # s

LONGEST_NAME = 64
"""Maximum length of a label value that comes from outside the agent, in characters."""

MOST_NAMES = 65_536
"""Maximum number of names or numbers in a Slurm list."""

MOST_ANCESTORS = 64
"""Maximum number of ancestors of a process; a longer chain is a loop of reused PIDs."""

MOST_THREADS, MOST_FOLLOWED, MOST_DESCENDANTS = 5000, 24, 128
"""Maximum number of threads per process that a tick lists, maximum number of threads per process
that it reads, and maximum number of descendants of a GPU's processes that it reads."""

MOST_LISTED, LIST_BEGUN, MOST_ASKED = 400, 10, 100
"""Maximum number of threads that a tick lists across all processes, cost of starting a list (in
threads), and maximum number of threads of a process that are queried for children at a time."""

MOST_MET, MOST_AT_REST = 64, 32
"""Maximum number of new processes that a tick examines, because reading the ancestors of a process
takes 0.5 ms, and maximum number of idle processes per GPU whose I/O bytes a tick reads."""

MOST_LOOK_UPS, LOOK_UP_AT_ONCE, LOOK_UP_LATE = 8, 0.05, 2.0
"""Maximum number of concurrent threads that read process memory, each of which may block; seconds
that a tick waits for these threads; and seconds after which a process is judged without the
result."""

POWER_SAMPLES = 300
"""Number of power samples per GPU, 20 ms apart, or 6 s; the driver's buffer holds 2.4 s."""

JOBS_KEPT, RATES_KEPT = 50, 90
"""Number of ended jobs whose receipts are kept, and number of 10 s speed values per running job."""

HOURS_KEPT, MOST_OWNERS, LARGEST_HOUR = 7 * 24, 64, 1 << 18
"""Number of hours kept; maximum number of jobs recorded separately per hour (all others are summed
without an owner); and maximum size of an hour's file in bytes."""

DISK_HANGS = 5.0
"""Seconds that the agent waits for a disk at startup and shutdown."""

HOURS_SAVED_EVERY = 300.0
"""Seconds between writes of the hourly sums, which is the most that a crash can lose."""
