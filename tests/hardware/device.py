"""Constants and helpers of loads that run on a GPU, or on the CPU to be tried."""

import os
from typing import Any

import torch

DEVICE = os.environ.get("DGX_LOAD_DEVICE", "cuda")
"""`cpu` tries a load on a machine without a GPU."""


EVERY = 0.5
"""Seconds between two lines."""

IMAGE = (3, 224, 224)


def synchronize() -> None:
    """Wait until the GPU has done what it was reported."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def pinned(tensor: Any) -> Any:
    """The tensor in memory that the copy engines can reach."""
    return tensor.pin_memory() if DEVICE == "cuda" else tensor
