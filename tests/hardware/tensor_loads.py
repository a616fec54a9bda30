"""`python -m tests.hardware.tensor_loads NAME,... SECONDS GPU`: work of known FLOP, no agent.

Each NAME is TYPE-MxKxN, gpt or resnet, and has so many seconds; lines of JSON hold `at`
(CLOCK_MONOTONIC, s), the place of its name as `case` and `flop` since its start. It needs PyTorch;
DGX_LOAD_DEVICE=cpu tries it without a GPU, at small sizes.
"""

import sys
import time
from collections.abc import Callable

import torch

from tests.hardware.loads import say
from tests.hardware.networks import DEVICE, IMAGES, TOKENS, training

GPT_TOKEN = 6 * 124e6 + 12 * 12 * 768 * 1024
RESNET_IMAGE = 3 * 2 * 4.09e9
"""FLOP of a token of GPT-2's smallest and of an image of ResNet-50, forward and backward."""

DTYPES = {"tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FLOP = {"gpt": TOKENS * 1024 * GPT_TOKEN, "resnet": IMAGES * RESNET_IMAGE}


def product(kind: str, m: int, k: int, n: int) -> tuple[Callable[[], object], float]:
    """One product of m x k and k x n, and its operations."""
    torch.backends.cuda.matmul.allow_tf32 = True
    left, right = torch.randn(m, k, device=DEVICE), torch.randn(n, k, device=DEVICE)
    flop = 2.0 * m * k * n
    if kind == "fp8":
        one, other = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
        unscaled = torch.ones((), device=DEVICE)
        out = torch.bfloat16
        return lambda: torch._scaled_mm(one, other, unscaled, unscaled, out_dtype=out), flop
    if kind == "int8":
        whole, others = left.to(torch.int8), right.to(torch.int8).t()
        return lambda: torch._int_mm(whole, others), flop
    first, second = left.to(DTYPES[kind]), right.to(DTYPES[kind]).t()
    return lambda: first @ second, flop


def repeat(step: Callable[[], object], flop: float, seconds: float, case: int) -> None:
    """Repeat one work until its time is up; a line after each half second."""
    end, done, count = time.monotonic() + seconds, 0.0, 1
    while (begun := time.monotonic()) < end:
        for _ in range(count):
            step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        done += count * flop
        say(flop=done, case=case)
        count = max(1, round(count * 0.5 / max(1e-6, time.monotonic() - begun)))


def main(names: str, seconds: float, gpu: int) -> None:
    """Play the works one after the other; one that this library refuses has a line without FLOP."""
    if DEVICE == "cuda":
        torch.cuda.set_device(gpu)
    for case, name in enumerate(names.split(",")):
        kind, _, shape = name.partition("-")
        try:
            if shape:
                repeat(*product(kind, *map(int, shape.split("x"))), seconds, case)
            else:
                repeat(training(kind), FLOP[kind], seconds, case)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            say(case=case)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
