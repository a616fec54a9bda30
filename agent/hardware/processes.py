"""Processes of the host from /proc. A process may end between any two reads.

The kernel reads a process's memory, `cmdline` and `environ` (and `maps`, `smaps`) under the lock of
that memory, which a fault that waits for a disk or a file server holds: these two may block for as
long. `stat`, `status`, `schedstat`, `children`, `cgroup` and `comm` do not.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Set
from errno import ESRCH
from math import isfinite
from typing import NamedTuple

from agent.bounds import MOST_ASKED
from agent.hardware.files import FileTree, whole

TICKS_PER_SECOND = 100
"""Ticks a second of CPU time and start times in /proc: USER_HZ, on every machine with an NVIDIA
driver."""

LAUNCHING, DISPATCHING = "pt_autograd_", "py_xla_"
"""Names of PyTorch's threads for the backward pass, which launch as the main thread does; and of
XLA's, which dispatch: its processes sleep until their GPU has finished, others spin."""

PINNED = 64 * 2**20
"""Shared memory (bytes) of a process from which it has pinned some: a process of CUDA has 8 to 20
MiB, and `cudaHostAlloc` adds what it pins (PyTorch 2.11, driver 580). Batches that its loaders
share count too, while it copies them (21 MiB)."""

LOCK_ASKED_EACH = 0.005
"""Seconds after which a thread of CPython that waits for the interpreter's lock wakes to ask again
(`sys.getswitchinterval`). A main thread that does so most of the time waits for another thread,
which is no engine. The main thread of a server sleeps, or wakes more often (1,558 times a second
for its clients)."""

GONE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)
"""Errors of the kernel for a process that does not exist (any more)."""

LONGEST_PID = 10  # digits
YOUNG, LOOK_EVERY = 60.0, 30.0
"""Seconds after a process was met from which threads that never had a child are asked less often,
and how often: few fork, and a process may have hundreds."""


class Stat(NamedTuple):
    """A process now; `seconds` of CPU time are those of all its threads, `system`
    those of them in the kernel, `ended` those of its
    descendants that have ended and were waited for, `started` since boot."""

    pid: int
    name: str
    state: str  # a letter: R runs, D sleeps uninterruptibly, S sleeps, ...
    parent: int
    group: int
    seconds: float
    system: float
    ended: float
    started: float


def stat(files: FileTree, pid: int, tid: int = 0, *, again: bool = False) -> Stat:
    """/proc/PID/stat, or /proc/PID/task/TID/stat of one thread; raises OSError. A file that is read
    `again` and again may stay open."""
    path = f"/proc/{pid}/task/{tid}/stat" if tid else f"/proc/{pid}/stat"
    text = files.reread(path) if again else files.read(path)
    head, _, tail = text.rpartition(")")  # a name may hold anything
    try:
        words = tail.split(maxsplit=20)
        state, parent, group = words[0], int(words[1]), int(words[2])
        seconds = (int(words[11]) + int(words[12])) / TICKS_PER_SECOND
        system = int(words[12]) / TICKS_PER_SECOND
        ended = (int(words[13]) + int(words[14])) / TICKS_PER_SECOND
        started = int(words[19]) / TICKS_PER_SECOND
    except (ValueError, IndexError, OverflowError) as error:  # it ended while the kernel wrote
        raise ProcessLookupError(ESRCH, "ended", path) from error
    name = head.partition("(")[2]
    return Stat(tid or pid, name, state, parent, group, seconds, system, ended, started)


def status(files: FileTree, pid: int) -> dict[str, str]:
    """/proc/PID/status by key; raises OSError."""
    lines = files.read(f"/proc/{pid}/status").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def pins(files: FileTree, pid: int) -> bool:
    """Return whether a process on a GPU has pinned memory; false if it is not readable."""
    words = _text(files, f"/proc/{pid}/status").partition("RssShmem:")[2].split(maxsplit=1)
    return bool(words) and 1024 * (whole(words[0]) or 0) >= PINNED


def uid(found: dict[str, str]) -> int | None:
    """The real user id in a status, or None if it holds no user id."""
    first = found.get("Uid", "").split()[:1]
    return whole(first[0]) if first else None


def is_roots(files: FileTree, pid: int, name: str) -> bool:
    """Return whether a process of this name (as the kernel cuts it, to 15 letters) is root's: any
    user may give any name to a program. Raises OSError."""
    found = status(files, pid)
    return found.get("Name") == name and uid(found) == 0


def user_namespace(files: FileTree, pid: int) -> str:
    """The user namespace of a process, such as `user:[4026531837]`; empty if it is hidden, as that
    of another user's process without CAP_SYS_PTRACE."""
    try:
        return files.link(f"/proc/{pid}/ns/user")
    except OSError:
        return ""


def cgroup(files: FileTree, pid: int) -> str:
    return _text(files, f"/proc/{pid}/cgroup")


def command(files: FileTree, pid: int) -> tuple[str, ...]:
    """The words of /proc/PID/cmdline; empty if it is not readable. May block."""
    return tuple(_text(files, f"/proc/{pid}/cmdline").rstrip("\0").split("\0"))


def environment(files: FileTree, pid: int, names: Set[str]) -> dict[str, str]:
    """These variables of /proc/PID/environ and no others; empty if it is not readable, as that of
    another user's process without CAP_SYS_PTRACE. May block."""
    pairs = (entry.partition("=") for entry in _text(files, f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, _, value in pairs if name in names}


def bytes_moved(files: FileTree, pid: int) -> int | None:
    """Bytes that a process has read and written, of any origin and target, from /proc/PID/io; None
    if it is not readable, as that of another user's process."""
    words = _text(files, f"/proc/{pid}/io").split()
    found = dict(zip(words[::2], words[1::2], strict=False))
    counts = [whole(found.get(name, "")) for name in ("rchar:", "wchar:")]
    stored = [whole(found.get(name, "")) or 0 for name in ("read_bytes:", "write_bytes:")]
    if None in counts:
        return None
    return sum(max(one or 0, other) for one, other in zip(counts, stored, strict=True))


def uptime(files: FileTree) -> float | None:
    """Seconds since boot, or None if /proc does not report it."""
    try:
        seconds = float(_text(files, "/proc/uptime").split()[0])
    except (ValueError, IndexError):
        return None
    return seconds if isfinite(seconds) else None


def _text(files: FileTree, path: str) -> str:
    try:
        return files.read(path)
    except OSError:
        return ""


def _pids(text: str) -> Iterator[int]:
    return (pid for word in text.split() if (pid := whole(word, LONGEST_PID)) is not None)


class _Forks(NamedTuple):
    """The threads of a process that had children; the `rest` are not asked yet."""

    met: float
    seen: float  # when all threads were listed last
    threads: list[str]
    rest: list[str]


class Descent:
    """Table of parents and children, from the kernel's lists of children."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._forks: dict[int, _Forks] = {}
        self._swept = 0.0
        self.unlisted: set[int] = set()
        """Processes whose children the last search could not list: they ended, /proc hides them, or
        the kernel has no such list (CONFIG_PROC_CHILDREN)."""

    def below(self, pids: Iterable[int], foreign: Set[int], most: int, now: float) -> list[int]:
        """Return at most so many descendants, nearest first, without foreign processes and their
        descendants. `now` is in seconds."""
        if now - self._swept >= 2 * LOOK_EVERY:
            lately = ((p, one) for p, one in self._forks.items() if one.seen >= self._swept)
            self._forks, self._swept = dict(lately), now
        found: dict[int, None] = {}
        self.unlisted.clear()
        queue = deque(pids)
        while queue and len(found) < most:
            pid = queue.popleft()
            children = self._children(pid, now, first=pid not in found)
            new = [child for child in children if child not in foreign]
            new = [child for child in new if child not in found][: most - len(found)]
            found.update(dict.fromkeys(new))
            queue.extend(new)
        return list(found)

    def _children(self, pid: int, now: float, *, first: bool) -> list[int]:
        try:
            return list(self._listed_children(pid, now, first=first))
        except OSError:
            self.unlisted.add(pid)
            return []

    def _listed_children(self, pid: int, now: float, *, first: bool) -> Iterator[int]:
        """Find children by the thread that forked them. Threads without children are asked at
        intervals, except the main thread of a process that comes `first`."""
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
                found[thread] = list(_pids(_text(self._files, f"{folder}/{thread}/children")))
        if every:
            forked = [one for one, children in found.items() if children or one in threads]
            self._forks[pid] = _Forks(met, seen, forked, rest[MOST_ASKED:])
        for children in found.values():
            yield from children
