"""Loads of several GPUs: one process a GPU, joined by NCCL."""

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from tests.hardware import networks
from tests.hardware.feeds import fixed
from tests.hardware.training import DEVICE, IMAGE, WARM_UP, Progress, synchronize, train

BATCH = 128
SLEEP = 0.3  # s before each step of the rank that sleeps
EXTRA = 768  # images that the rank with double work sees besides its batch, forward only
REDUCED = 1 << 30  # bytes
AT_ONCE = 10  # all-reduces between two checks of the time


def reduce_only(rank: int, seconds: float) -> None:
    """All-reduce of 1 GiB, again and again; counts GiB in the place of images."""
    data = torch.ones(REDUCED // 4, device=DEVICE)
    for _ in range(WARM_UP):
        dist.all_reduce(data)
    synchronize()
    progress = Progress(seconds, silent=rank > 0)
    going = True
    while going:
        for _ in range(AT_ONCE):
            dist.all_reduce(data)
        synchronize()
        going = progress.add(AT_ONCE)


def _data_parallel(rank: int, seconds: float, before: Callable[[Any], None] | None = None) -> None:
    inner = networks.resnet50().to(DEVICE)
    network = DistributedDataParallel(inner, device_ids=[rank] if DEVICE == "cuda" else None)
    call = None if before is None else (lambda: before(inner))
    batches = fixed(BATCH, on_gpu=True)
    train(network, batches, seconds, silent=rank > 0, before=call)


def balanced(rank: int, seconds: float) -> None:
    """Every rank does the same."""
    _data_parallel(rank, seconds)


def sleeper(rank: int, seconds: float) -> None:
    """Rank 0 sleeps before each step."""

    def sleep(_: Any) -> None:
        synchronize()
        time.sleep(SLEEP)

    _data_parallel(rank, seconds, sleep if rank == 0 else None)


def double(rank: int, seconds: float) -> None:
    """Rank 0 computes far more than the others in each step."""
    extra = torch.rand(EXTRA, *IMAGE, device=DEVICE) if rank == 0 else None

    def compute(network: Any) -> None:
        with torch.no_grad():
            network(extra)

    _data_parallel(rank, seconds, compute if rank == 0 else None)


def _rank(rank: int, machine: int, port: int, work: Callable[[int, float], None], s: float) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", rank=rank, world_size=machine)
    work(rank, s)


def everywhere(work: Callable[[int, float], None], seconds: float, machine: int = 0) -> None:
    """One process a GPU. The first says when it is over: the others may hang in NCCL by then."""
    machine = machine or torch.cuda.device_count()
    if machine < 2:
        raise SystemExit("this load needs two GPUs or more")
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    arguments = (machine, port, work, seconds)
    # forked: this process has asked the GPUs nothing but their number, and torch is imported
    context = mp.start_processes(_rank, arguments, machine, join=False, start_method="fork")
    context.processes[0].join()
    for process in context.processes:
        process.kill()
