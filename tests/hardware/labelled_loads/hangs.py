"""Jobs of several ranks that stop getting on: hangs, and a checkpoint, which is none."""

import os
import signal
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from tests.hardware.device import DEVICE, synchronize
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.collectives import ExposedSteps
from tests.hardware.labelled_loads.labels import DISK, HUNG
from tests.hardware.labelled_loads.work import sized

STEP = 0.1  # s
SHARE = 0.1
PIECE = 16 << 20  # bytes written between two calls of fsync


def _crossed(rank: int, groups: list[dist.ProcessGroup]) -> None:
    """Rank 1 left out a collective of the first group: it waits in the second, the others there."""
    dist.all_reduce(torch.zeros(1 << 20, device=DEVICE), group=groups[rank == 1])
    synchronize()


def _stopped(stopped: int) -> Callable[[int, list[dist.ProcessGroup]], None]:
    def wait(rank: int, groups: list[dist.ProcessGroup]) -> None:
        if rank == stopped:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.zeros(1 << 20, device=DEVICE), group=groups[0])
        synchronize()

    return wait


def _creating(rank: int, groups: list[dist.ProcessGroup]) -> None:
    """Rank 0 creates a communicator, and waits on the host for rank 1."""
    _stopped(1)(rank, groups[2:])


def _input(rank: int, groups: list[dist.ProcessGroup]) -> None:
    """Rank 1 reads from a pipe into which no one writes."""
    if rank == 1:
        reading, _writing = os.pipe()
        os.read(reading, 1)
    dist.all_reduce(torch.zeros(1 << 20, device=DEVICE), group=groups[0])
    synchronize()


WAYS: dict[str, Callable[[int, list[dist.ProcessGroup]], None]] = {
    "counts": _crossed,
    "stopped": _stopped(1),
    "first-stopped": _stopped(0),
    "input": _input,
    "creating": _creating,
}


def hang(rank: int, seconds: float, *, way: str, after: float) -> None:
    """Trains for so long (s), then hangs in one of WAYS, for ever."""
    groups = [dist.new_group() for _ in range(3)]
    for group in groups[:2]:  # NCCL's communicator of a group is created when it is first used
        dist.all_reduce(torch.zeros(1 << 20, device=DEVICE), group=group)
    steps = ExposedSteps(SHARE, STEP)
    clock = ShareClock(seconds, rank)
    clock.begin()
    for _ in range(round(after / STEP)):
        steps.compute(clock)
        steps.exchange(clock)
    synchronize()
    clock.open(HUNG)
    WAYS[way](rank, groups)


def checkpoint(rank: int, seconds: float, *, every: float, writing: float) -> None:
    """Rank 0 writes for so long (s) every so often (s); the others wait for it."""
    steps = ExposedSteps(SHARE, STEP)
    piece = os.urandom(sized(PIECE, 1 << 20))
    clock = ShareClock(seconds, rank)
    clock.begin()
    done = 0
    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR") or ".", buffering=0) as file:
        while clock.going():
            steps.compute(clock)
            done += 1
            if rank == 0 and done % round(every / STEP) == 0:
                synchronize()
                _write(file.fileno(), piece, writing)
                clock.mark(DISK)
            steps.exchange(clock)


def _write(file: int, piece: bytes, seconds: float) -> None:
    end = time.monotonic() + seconds
    os.lseek(file, 0, os.SEEK_SET)
    while time.monotonic() < end:
        os.write(file, piece)
        os.fsync(file)
