"""Limits on the agent's work and memory, and on waiting for calls that may block. A higher limit
costs time or memory. None of the limits is a threshold for verdicts."""

HOUR = 3600.0  # s

LONGEST_NAME = 64
"""Maximum length of a label value that another program or a user chooses."""

MOST_NAMES = 65_536
"""Maximum number of names or numbers in a list from Slurm."""

MOST_ANCESTORS = 64
"""Maximum number of a process's ancestors. If there are more, reused PIDs form a loop."""

MOST_THREADS, MOST_FOLLOWED, MOST_DESCENDANTS = 5000, 24, 128
"""In a tick, the agent lists up to MOST_THREADS threads of a process, and reads up to MOST_FOLLOWED
of them and up to MOST_DESCENDANTS descendants of a GPU's processes."""

MOST_LISTED, LIST_BEGUN, MOST_ASKED = 400, 10, 100
"""In a tick, the agent lists up to MOST_LISTED threads of all processes (each list counts as
LIST_BEGUN more threads), and checks up to MOST_ASKED threads of a process for children."""

MOST_MET, MOST_AT_REST = 64, 32
"""In a tick, the agent reads up to MOST_MET new processes (0.5 ms each, to find the ancestors), and
the I/O bytes of up to MOST_AT_REST idle processes of a GPU."""

MOST_LOOK_UPS, LOOK_UP_AT_ONCE, LOOK_UP_LATE = 8, 0.05, 2.0
"""Maximum number of concurrent threads that read the memory of processes (each may block), seconds
that a tick waits for them, and seconds after which a process is listed without the result."""

POWER_SAMPLES = 300
"""Number of 20 ms power samples to keep per GPU (6 s). The driver's buffer holds 2.4 s."""

JOBS_KEPT, RATES_KEPT = 50, 90
"""Number of receipts to keep for ended jobs, and of step rates (one per 10 s) per running job."""

HOURS_KEPT, MOST_OWNERS = 7 * 24, 64
"""Number of hours to keep, and maximum number of jobs that are listed separately in an hour. The
time of all other jobs is added up without names."""

DISK_HANGS = 5.0
"""Seconds for which the agent waits for a disk at startup and shutdown."""

HOURS_SAVED_EVERY = 300.0
"""Seconds between writes of the hourly sums. A crash loses at most this much time."""
