"""Reads data about processes from /proc. A process may exit between any two reads.

The kernel holds the memory lock of a process while it reads `cmdline` and `environ` (and `maps` and
`smaps`). A page fault that waits for a disk or a file server also holds the lock, so reading these
files may block. Reading `stat`, `status`, `schedstat`, `children`, `cgroup`, and `comm` does not.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Set
from errno import ESRCH
from math import isfinite
from typing import NamedTuple

from agent.bounds import MOST_ASKED
from agent.hardware.files import FileTree, text_or_nothing, whole

TICKS_PER_SECOND = 100
"""Clock ticks per second (USER_HZ), the unit of CPU times and start times in /proc. USER_HZ is 100
on every machine that the NVIDIA driver supports."""

FAULT = 2.3e-6
"""Seconds of kernel time for a page fault without I/O, which maps 4 KiB of new memory. For copies
from the GPU on H100 systems, it was 2.1 to 2.3 us."""

FRESH_RATE = 4096 / FAULT  # Bytes of new memory per second of such faults

LAUNCHING, DISPATCHING = "pt_autograd_", "py_xla_"
"""Name prefixes of threads. LAUNCHING: PyTorch's backward-pass threads, which launch kernels and
spin until the GPU has finished. DISPATCHING: XLA's dispatch threads, which sleep until then."""

PINNED = 64 * 2**20
"""A process with at least this much shared memory (bytes) is assumed to have pinned memory. A CUDA
process has 8 to 20 MiB of shared memory, and `cudaHostAlloc` increases it (PyTorch 2.11, driver
580). Batches from data loaders also count while the process copies them (21 MiB)."""

LOCK_ASKED_EACH = 0.005
"""A CPython thread that waits for the global interpreter lock (GIL) wakes up after this many
seconds to request the lock again (`sys.getswitchinterval`). A main thread that mostly does this is
waiting for another Python thread. The main thread of an inference server sleeps longer or wakes up
more often (measured: 1,558 times per second)."""

GONE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)
"""Exceptions that a read raises if a process does not exist or has exited."""

YOUNG, LOOK_EVERY = 60.0, 30.0
"""Until a process has been known for YOUNG seconds, every read checks all its threads for children.
Later, threads without children are checked every LOOK_EVERY seconds, as only a few of them fork."""


class Stat(NamedTuple):
    """The stat file of a process or thread. `seconds` is its CPU time, and `system` the part of it
    in the kernel. `fresh` is the part of `system` for page faults without I/O. `ended` is the CPU
    time of descendants that have exited and whose parents have waited for them. `started` is in
    seconds since boot."""

    pid: int
    name: str
    state: str  # a letter, for example R: running, S: sleeping, D: uninterruptible sleep
    parent: int
    group: int
    seconds: float
    system: float
    fresh: float
    ended: float
    started: float


def stat(files: FileTree, pid: int, tid: int = 0, *, again: bool = False) -> Stat:
    """Parse /proc/PID/stat of a process, or /proc/PID/task/TID/stat of a thread. If `again` is
    true, the file may be kept open for later reads. Raise OSError if it cannot be read."""
    path = f"/proc/{pid}/task/{tid}/stat" if tid else f"/proc/{pid}/stat"
    text = files.reread(path) if again else files.read(path)
    head, _, tail = text.rpartition(")")  # the name may contain any character
    try:
        words = tail.split(maxsplit=20)
        state, parent, group = words[0], int(words[1]), int(words[2])
        seconds = (int(words[11]) + int(words[12])) / TICKS_PER_SECOND
        system, fresh = int(words[12]) / TICKS_PER_SECOND, int(words[7]) * FAULT
        ended = (int(words[13]) + int(words[14])) / TICKS_PER_SECOND
        started = int(words[19]) / TICKS_PER_SECOND
    except (ValueError, IndexError, OverflowError) as error:  # the process exited during the read
        raise ProcessLookupError(ESRCH, "ended", path) from error
    name = head.partition("(")[2]
    return Stat(tid or pid, name, state, parent, group, seconds, system, fresh, ended, started)


def status(files: FileTree, pid: int) -> dict[str, str]:
    """Return the values in /proc/PID/status by key, or an empty dict if it cannot be read."""
    lines = text_or_nothing(files, f"/proc/{pid}/status").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def pins(files: FileTree, pid: int) -> bool:
    """Return whether a GPU process has pinned memory, or False if this is unknown."""
    text = text_or_nothing(files, f"/proc/{pid}/status")
    words = text.partition("RssShmem:")[2].split(maxsplit=1)
    return bool(words) and 1024 * (whole(words[0]) or 0) >= PINNED


def uid(found: dict[str, str]) -> int | None:
    """Return the real user ID in a result of `status`, or None if it is missing."""
    first = found.get("Uid", "").split()[:1]
    return whole(first[0]) if first else None


def is_roots(files: FileTree, pid: int, name: str) -> bool:
    """Return whether a process has the given name (at most 15 characters) and runs as root.
    Checking the name alone is not enough, because any user can choose it."""
    found = status(files, pid)
    return found.get("Name") == name and uid(found) == 0


def user_namespace(files: FileTree, pid: int) -> str:
    """Return the user namespace of a process, for example `user:[4026531837]`, or an empty string
    if it is not readable. For another user's process, reading it requires CAP_SYS_PTRACE."""
    try:
        return files.link(f"/proc/{pid}/ns/user")
    except OSError:
        return ""


def command(files: FileTree, pid: int) -> tuple[str, ...]:
    """Return the command line of a process, or `("",)` if it cannot be read. The read may block."""
    return tuple(text_or_nothing(files, f"/proc/{pid}/cmdline").rstrip("\0").split("\0"))


def environment(files: FileTree, pid: int, names: Set[str]) -> dict[str, str]:
    """Return those environment variables of a process that are in `names`, or {} if they cannot be
    read. For another user's process, this requires CAP_SYS_PTRACE. The read may block."""
    entries = text_or_nothing(files, f"/proc/{pid}/environ").split("\0")
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if name in names}


def bytes_moved(files: FileTree, pid: int) -> int | None:
    """Return the number of bytes that a process has read from and written to files and devices,
    according to /proc/PID/io. Return None if it belongs to another user."""
    words = text_or_nothing(files, f"/proc/{pid}/io").split()
    found = dict(zip(words[::2], words[1::2], strict=False))
    counts = [whole(found.get(name, "")) for name in ("rchar:", "wchar:")]
    stored = [whole(found.get(name, "")) or 0 for name in ("read_bytes:", "write_bytes:")]
    if None in counts:
        return None
    return sum(max(one or 0, other) for one, other in zip(counts, stored, strict=True))


def uptime(files: FileTree) -> float | None:
    """Return the number of seconds since boot, or None if it is unknown."""
    try:
        seconds = float(text_or_nothing(files, "/proc/uptime").split()[0])
    except (ValueError, IndexError):
        return None
    return seconds if isfinite(seconds) else None


def _pids(text: str) -> Iterator[int]:
    return (pid for word in text.split() if (pid := whole(word, 10)) is not None)


class _Forks(NamedTuple):
    """`threads` of a process have had children. The threads in `rest` must still be checked."""

    met: float
    seen: float  # time at which all threads were last listed
    threads: list[str]
    rest: list[str]


class Descent:
    """Finds the descendants of processes in the kernel's lists of children."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._forks: dict[int, _Forks] = {}
        self._swept = 0.0
        self.unlisted: set[int] = set()
        """PIDs whose children the last search could not list, because the process exited, /proc
        hides it, or the kernel lacks CONFIG_PROC_CHILDREN."""

    def below(self, pids: Iterable[int], foreign: Set[int], most: int, now: float) -> list[int]:
        """Return up to `most` descendants of `pids`, nearest first. Omit the processes in `foreign`
        and their descendants. `now` is in seconds."""
        if now - self._swept >= 2 * LOOK_EVERY:
            lately = ((p, one) for p, one in self._forks.items() if one.seen >= self._swept)
            self._forks, self._swept = dict(lately), now
        found: dict[int, None] = {}
        self.unlisted.clear()
        queue = deque(pids)
        while queue and len(found) < most:
            pid = queue.popleft()
            try:
                children = list(self._listed_children(pid, now, first=pid not in found))
            except OSError:
                self.unlisted.add(pid)
                continue
            new = [child for child in children if child not in foreign]
            new = [child for child in new if child not in found][: most - len(found)]
            found.update(dict.fromkeys(new))
            queue.extend(new)
        return list(found)

    def _listed_children(self, pid: int, now: float, *, first: bool) -> Iterator[int]:
        """Yield the PIDs of a process's children. Always check threads that have forked before, and
        the main thread if `first` is true. Check other threads less often."""
        folder = f"/proc/{pid}/task"
        met, seen, threads, rest = self._forks.get(pid, _Forks(now, now, [], []))
        main, every = str(pid), now - met < YOUNG or now - seen >= LOOK_EVERY or bool(rest)
        found: dict[str, list[int]] = {}
        if first or every or main in threads:
            found[main] = list(_pids(self._files.read(f"{folder}/{main}/children")))
        if every and not rest:
            rest, seen = self._files.names(folder), now
        for thread in dict.fromkeys((*threads, *rest[:MOST_ASKED])):
            if thread != main:
                text = text_or_nothing(self._files, f"{folder}/{thread}/children")
                found[thread] = list(_pids(text))
        if every:
            forked = [one for one, children in found.items() if children or one in threads]
            self._forks[pid] = _Forks(met, seen, forked, rest[MOST_ASKED:])
        for children in found.values():
            yield from children
