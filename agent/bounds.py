"""Limits on the agent's CPU time and memory, and timeouts of calls that may block. A higher limit
costs time or memory. Verdicts on GPUs do not depend on these limits."""

HOUR = 3600.0  # s

LONGEST_NAME = 64
"""Maximum length of a label value that comes from another program or a user."""

MOST_NAMES = 65_536
"""Maximum number of names or numbers in a list from Slurm."""

MOST_ANCESTORS = 64
"""Maximum number of ancestors of a process to follow. More ancestors mean a loop of reused PIDs."""

MOST_THREADS, MOST_FOLLOWED, MOST_DESCENDANTS = 5000, 24, 128
"""Maximum numbers per tick: threads of a process to list, threads of a process to read, and
descendants of a GPU's processes to read."""

MOST_LISTED, LIST_BEGUN, MOST_ASKED = 400, 10, 100
"""Maximum numbers per tick: threads of all processes to list (each list counts as LIST_BEGUN more
threads), and threads of a process to check for children."""

MOST_MET, MOST_AT_REST = 64, 32
"""MOST_MET: maximum number of new processes to read per tick. Finding the ancestors of one takes
0.5 ms. MOST_AT_REST: maximum number of a GPU's idle processes whose I/O bytes are read per tick."""

MOST_LOOK_UPS, LOOK_UP_AT_ONCE, LOOK_UP_LATE = 8, 0.05, 2.0
"""Reads of process memory may block. They have at most MOST_LOOK_UPS threads. A tick waits for
LOOK_UP_AT_ONCE s. After LOOK_UP_LATE s, a process is listed without the result."""

POWER_SAMPLES = 300
"""Number of 20 ms power samples to keep per GPU (6 s). The driver's buffer holds 2.4 s."""

JOBS_KEPT, RATES_KEPT = 50, 90
"""Number of receipts of ended jobs to keep, and of step rates per running job (one every 10 s)."""

HOURS_KEPT, MOST_OWNERS = 7 * 24, 64
"""HOURS_KEPT: number of hours for which GPU time is kept. MOST_OWNERS: maximum number of jobs with
separate times in an hour. The times of further jobs are summed without names."""

DISK_HANGS = 5.0
"""Timeout in seconds for disk access at startup and shutdown."""

HOURS_SAVED_EVERY = 300.0
"""Seconds between writes of the hourly GPU times to disk. A crash loses at most this much time."""
