"""A training loop that tells when its steady phase begins and how many images it has done."""

import json
import os
import time
from collections.abc import Iterable
from typing import Any

import torch

DEVICE = os.environ.get("DGX_LOAD_DEVICE", "cuda")
"""`cpu` tries a load on a machine without a GPU."""

WARM_UP = 5
"""Steps before the steady phase: libraries are loaded, algorithms chosen, memory taken."""

EVERY = 0.5
"""Seconds between two lines."""

IMAGE = (3, 224, 224)


def say(**facts: float) -> None:
    """One line of JSON; `at` is CLOCK_MONOTONIC (s), which all processes of a machine share."""
    print(json.dumps({"at": time.monotonic(), **facts}), flush=True)


def synchronize() -> None:
    """Wait until the GPU has done what it was told."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def pinned(tensor: Any) -> Any:
    """The tensor in memory that the copy engines can reach."""
    return tensor.pin_memory() if DEVICE == "cuda" else tensor


class Progress:
    """The steady phase: pieces done (images, say), told every so often, until time is up."""

    def __init__(self, seconds: float, *, silent: bool = False) -> None:
        self._start = self._said = time.monotonic()
        self._end = self._start + seconds
        self._done = 0
        self._silent = silent
        if not silent:
            say(steady=1, images=0)

    def add(self, pieces: int) -> bool:
        """Count pieces; whether to go on."""
        self._done += pieces
        now = time.monotonic()
        if now - self._said >= EVERY and not self._silent:
            synchronize()
            say(images=self._done)
            self._said = now
        return now < self._end


def train(
    network: Any,
    batches: Iterable[Any],
    seconds: float,
    *,
    little: bool = False,
    silent: bool = False,
    before: Any = None,
) -> None:
    """Train on batches as they come, wherever they lie. `before` is called before each step."""
    rate = 1e-4
    optimiser: Any = (
        torch.optim.RMSprop(network.parameters(), lr=rate)  # as the paper trained LittleCNN
        if little
        else torch.optim.SGD(network.parameters(), lr=rate)
    )
    loss = torch.nn.CrossEntropyLoss()
    labels = torch.zeros(1, dtype=torch.long, device=DEVICE)
    progress = None
    for step, batch in enumerate(batches):
        if before is not None:
            before()
        images = batch.to(DEVICE, non_blocking=True)
        optimiser.zero_grad()
        loss(network(images), labels.expand(len(images))).backward()
        optimiser.step()
        if progress is None and step >= WARM_UP:
            synchronize()
            progress = Progress(seconds, silent=silent)
        elif progress is not None and not progress.add(len(images)):
            return
