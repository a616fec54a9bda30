"""`python -m tests.hardware.traced.blocked PID PATH`: watches the main thread of a process from
outside until the process ends, and writes each moment (CLOCK_MONOTONIC, ns) at which the thread was
in uninterruptible sleep."""

import struct
import sys
import time
from contextlib import suppress

EVERY = 0.01
"""Seconds between two looks."""


def main(pid: str, path: str) -> None:
    """Look until the process has ended."""
    with (
        suppress(OSError),
        open(f"/proc/{pid}/task/{pid}/stat", "rb", buffering=0) as stat,
        open(path, "wb", buffering=0) as out,
    ):
        while True:
            stat.seek(0)
            if stat.read(4096).rpartition(b")")[2].split(maxsplit=1)[0] == b"D":
                out.write(struct.pack("<q", time.monotonic_ns()))
            time.sleep(EVERY)


if __name__ == "__main__":
    main(*sys.argv[1:])
