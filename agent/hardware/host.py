"""The interface to a host: psutil functions, files, user names, kernel log, and schedulers."""

import pwd
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agent.errors import encodable
from agent.hardware.files import FileTree, RealFiles
from agent.hardware.kernel_log import KernelLog, RealKernelLog
from agent.hardware.schedulers import RealSchedulers, Schedulers
from agent.hardware.sockets import Sockets, tcp_sockets
from agent.threads import on_a_thread


class Logins:
    """A cache of user names. Each user ID is looked up once, on a separate thread."""

    def __init__(
        self, find: Callable[[int], str] = lambda uid: encodable(pwd.getpwuid(uid).pw_name)
    ) -> None:
        self._find = find
        self._asked: dict[int, Future[str]] = {}

    def name(self, uid: int) -> str:
        """Return the name of a user, or the user ID as a string while the name is unknown."""
        if uid not in self._asked:
            self._asked[uid] = on_a_thread("login", partial(self._find, uid))
            wait([self._asked[uid]], 0.05)  # s, enough for /etc/passwd
        asked = self._asked[uid]
        return asked.result() if asked.done() and not asked.exception() else str(uid)


@dataclass(frozen=True, slots=True)
class Host:
    """A host: its files, psutil functions, kernel log, the schedulers that assign GPUs to jobs, and
    its TCP sockets. The function `login` returns the user name for a user ID."""

    files: FileTree
    psutil: Any  # has the functions disk_io_counters, net_io_counters, and cpu_times
    login: Callable[[int], str] = str
    kernel_log: KernelLog = field(default_factory=KernelLog)
    schedulers: Schedulers = field(default_factory=Schedulers)
    sockets: Sockets = lambda _: {}


def real_host(history: float = 0.0, kept: Path | None = None) -> Host:
    """Return the host on which this program runs. `history` is the number of seconds of past kernel
    log lines to read. `kept` is a file with the timestamp of the last line that an agent read."""
    import psutil

    return Host(
        files=RealFiles("/"),
        psutil=psutil,
        login=Logins().name,
        kernel_log=RealKernelLog(history, kept),
        schedulers=RealSchedulers(),
        sockets=tcp_sockets,
    )
