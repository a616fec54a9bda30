"""Loads of several GPUs: one process a GPU, joined by NCCL."""

import os
import socket
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.hardware.device import DEVICE


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
