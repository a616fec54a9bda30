"""Stops one thread of another process, as a bug would that never returns; until the process has
ended, or the input of this has."""

import ctypes
import os
import select
import sys

SEIZE, INTERRUPT = 0x4206, 0x4207
ALL_KINDS = 0x40000000  # __WALL: threads too


def freeze(thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (SEIZE, INTERRUPT):
        if libc.ptrace(request, thread, None, None) == -1:
            raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(thread, ALL_KINDS)


def ended(thread: int) -> bool:
    """Its own parent hears of its end only after this has."""
    return os.waitpid(thread, ALL_KINDS | os.WNOHANG) != (0, 0)


if __name__ == "__main__":
    freeze(int(sys.argv[1]))
    print("frozen", flush=True)
    while not ended(int(sys.argv[1])) and not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
