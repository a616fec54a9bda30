"""`python -m tests.hardware.traced.outside PID WORD ...`: a stand-in for another machine.

It runs a program that is no child of the load with this PID, has a session and a cgroup of its own,
and ends with the load.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.hardware.traced.marks import join_cgroup


def elsewhere(words: Sequence[str]) -> None:
    """Run a program as if on another machine. Call it from a load."""
    starter = [sys.executable, "-m", "tests.hardware.traced.outside", str(os.getpid()), *words]
    subprocess.run(starter, check=True)


def main(pid: str, *words: str) -> None:
    """Run the program in a grandchild until the load has ended."""
    if os.fork():
        return
    os.setsid()
    join_cgroup("", os.getpid())
    program = subprocess.Popen(words)
    while program.poll() is None and _is_alive(pid):
        time.sleep(0.2)
    program.kill()


def _is_alive(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
