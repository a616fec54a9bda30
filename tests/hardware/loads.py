"""Known loads on real GPUs (PyTorch). Each prints a line of JSON whenever a known piece is done.

`python -m tests.hardware.loads KIND SECONDS`; lines hold `at` (CLOCK_MONOTONIC, s), `bytes` moved
since the start, and what else is known. The clock is the machine's: lines compare across processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable

COPY_BYTES = 256 << 20
PACED_BYTES = 16 << 20
ALL_REDUCE_BYTES = 1 << 30
WARM_UP = 3


def say(**facts: float) -> None:
    print(json.dumps({"at": time.monotonic(), **facts}), flush=True)


def copies(direction: str, seconds: float, pause: float = 0.0) -> None:
    """Pinned copies between host and GPU 0, flat out or with a pause after each."""
    import torch

    size = PACED_BYTES if pause else COPY_BYTES
    host = torch.empty(size, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")
    source, target = (host, device) if direction == "h2d" else (device, host)
    moved, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        moved += size
        say(bytes=moved)
        if pause:
            time.sleep(pause)


def matrices(seconds: float, on: float = 1.0, off: float = 0.0) -> None:
    """Matrix products on every GPU for `on` seconds, then none for `off`, in turns."""
    import torch

    squares = [
        torch.randn(8192, 8192, device=f"cuda:{i}", dtype=torch.bfloat16)
        for i in range(torch.cuda.device_count())
    ]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start, busy = time.monotonic(), 0.0
        while time.monotonic() - start < on:
            for square in squares:
                torch.matmul(square, square)
            for index in range(len(squares)):
                torch.cuda.synchronize(index)
        busy += time.monotonic() - start
        say(busy=busy)
        time.sleep(off)


def _all_reduce(rank: int, machine: int, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    data = torch.ones(ALL_REDUCE_BYTES // 4, device="cuda")
    stop = torch.zeros(1, device="cuda")
    for _ in range(WARM_UP):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    start, reduced = time.monotonic(), 0
    while stop.item() == 0:
        for _ in range(50):
            dist.all_reduce(data)
        torch.cuda.synchronize()
        reduced += 50
        if rank == 0:
            bus = ALL_REDUCE_BYTES * reduced * 2 * (machine - 1) / machine
            say(bytes=bus, reduced=reduced)
            stop[0] = float(time.monotonic() - start > seconds)
        dist.broadcast(stop, 0)


def _training(rank: int, machine: int, seconds: float) -> None:
    """GPT-2 in bf16 with random weights and tokens; small where there is no GPU."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from tests.hardware.traced.loads_example import gpt, next_token_loss

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    words, width, heads, layers = (50304, 768, 12, 12) if on_gpu else (512, 64, 1, 2)
    with torch.device(device):  # drawn there: on the host it takes seconds
        network = gpt(words, width, heads, layers)
        tokens = torch.randint(0, words, (32, 1024) if on_gpu else (2, 32))
    network = DistributedDataParallel(network, [rank] if on_gpu else None)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=on_gpu or None)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = next_token_loss(network(tokens), tokens)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    start = 0.0
    for turn in range(WARM_UP + 3):
        step()
        if on_gpu:
            torch.cuda.synchronize()
        start = start if turn >= WARM_UP else time.monotonic()
    # all ranks take as many steps: one that waits for the others would never end
    steps = torch.tensor([seconds * 3 / (time.monotonic() - start)], device=device)
    dist.broadcast(steps, 0)
    before: list[torch.cuda.Event] = []
    for done in range(round(steps.item())):
        step()
        if on_gpu:  # the host is one step ahead
            before.append(torch.cuda.Event())
            before[-1].record()
            if len(before) > 1:
                before.pop(0).synchronize()
        if rank == 0:
            say(steps=done)


def _rank(rank: int, machine: int, work: Callable[[int, int, float], None], s: float) -> None:
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=machine)
    work(rank, machine, s)
    dist.destroy_process_group()


def everywhere(work: Callable[[int, int, float], None], seconds: float) -> None:
    """One process a GPU, joined by NCCL."""
    import torch
    import torch.multiprocessing as mp

    machine = torch.cuda.device_count() or 2
    mp.spawn(_rank, args=(machine, work, seconds), nprocs=machine)


LOADS: dict[str, Callable[[float], None]] = {
    "h2d": lambda seconds: copies("h2d", seconds),
    "d2h": lambda seconds: copies("d2h", seconds),
    "h2d-paced": lambda seconds: copies("h2d", seconds, pause=0.01),
    "d2h-paced": lambda seconds: copies("d2h", seconds, pause=0.01),
    "matrices": matrices,
    "duty": lambda seconds: matrices(seconds, on=0.3, off=0.7),
    # of 1 GiB; `bytes` is what NCCL calls bus traffic: what each GPU sends, and receives
    "all-reduce": lambda seconds: everywhere(_all_reduce, seconds),
    # of GPT-2 in DDP; `steps` that are done
    "training": lambda seconds: everywhere(_training, seconds),
}

if __name__ == "__main__":
    LOADS[sys.argv[1]](float(sys.argv[2]))
