"""`python -m tests.hardware.traced.blocked PID PATH`: watches the threads of a process that launch
kernels, from outside until the process ends. It writes each moment (CLOCK_MONOTONIC, ns) at which
the main thread was in uninterruptible sleep, and, as negative numbers, those at which all of these
threads slept otherwise."""

import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path

from tests.hardware.traced.marks import launches

EVERY = 0.01
"""Seconds between two looks."""

FOUND = 100
"""Looks after which threads are searched for anew."""


def main(pid: str, path: str) -> None:
    """Look until the process has ended."""
    with suppress(OSError), open(path, "wb", buffering=0) as out:
        while True:
            with ExitStack() as opened:
                tasks = list(Path(f"/proc/{pid}/task").iterdir())
                chosen = [task for task in tasks if task.name == pid or launches(task)]
                chosen.sort(key=lambda task: task.name != pid)  # the main thread first
                files = [opened.enter_context(FileIO(task / "stat")) for task in chosen]
                for _ in range(FOUND):
                    states = list(_states(files))
                    now = time.monotonic_ns()
                    if states[0] == b"D" or set(states) == {b"S"}:
                        out.write(struct.pack("<q", now if states[0] == b"D" else -now))
                    time.sleep(EVERY)


def _states(files: list[FileIO]) -> Iterator[bytes]:
    for place, file in enumerate(files):
        try:
            file.seek(0)
            yield (file.read(4096) or b"").rpartition(b")")[2].split(maxsplit=1)[0]
        except OSError:  # it has ended: the process, if it was the main thread
            if not place:
                raise
            yield b"S"


if __name__ == "__main__":
    main(*sys.argv[1:])
