"""Training on several ranks: data parallel, sharded, accumulating, validating, one rank late."""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.hardware.device import DEVICE, synchronize
from tests.hardware.labelled_loads import tasks
from tests.hardware.labelled_loads.clock import ShareClock
from tests.hardware.labelled_loads.labels import BUSY, NVLINK, PEER, UNKNOWN, Level
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.work import Products, agreed, length_of, length_together, sized

MEASURED = 1.5
"""Seconds for which a step is measured before the steady phase."""

VALIDATION_BATCHES = 8


def _wrapped(network: Any, rank: int) -> Any:
    return DistributedDataParallel(network, device_ids=[rank] if DEVICE == "cuda" else None)


def _measured(trainer: Trainer) -> tuple[float, float]:
    """Seconds of a step without exchange, and with it. Every rank measures its own first."""
    for _ in range(3):
        trainer.step()
    alone = length_of(lambda: trainer.step(exchange=False), sized(MEASURED, 0.1), at_once=4)
    count = max(2, round(agreed(sized(MEASURED, 0.1) / alone)))
    return alone, length_together(trainer.step, count)


def data_parallel(
    rank: int,
    seconds: float,
    *,
    task: str,
    batch: int,
    accumulate: int = 1,
    validate_every: int = 0,
) -> None:
    """Healthy: gradients are exchanged while the backward pass still runs."""
    network, loss = getattr(tasks, task)(batch)
    trainer = Trainer(_wrapped(network, rank), loss, accumulate)
    alone, together = _measured(trainer)
    clock = ShareClock(seconds, rank)
    clock.begin([(NVLINK, alone, together if validate_every else None)])
    done = 0
    while clock.going():
        trainer.step()
        clock.mark(BUSY)
        clock.step()
        done += 1
        if validate_every and done % validate_every == 0:
            with torch.no_grad():
                for _ in range(VALIDATION_BATCHES):
                    trainer.loss()
            clock.mark(BUSY)


def late(rank: int, seconds: float, *, task: str, batch: int, by: float, sleeping: bool) -> None:
    """Rank 1 comes late by this share of a step: it sleeps before each, or computes the more."""
    network, loss = getattr(tasks, task)(batch)
    trainer = Trainer(_wrapped(network, rank), loss)
    alone, together = _measured(trainer)
    extra = Products()
    product = length_of(lambda: extra.run(1), at_once=50)
    lateness = by * agreed(together)
    clock = ShareClock(seconds, rank)
    dist.barrier()
    levels: list[Level] = [(NVLINK, alone, together)]
    # what makes rank 1's own steps longer is its extra work, not another rank
    clock.begin([*levels, (PEER, together, None)] if rank != 1 else levels)
    while clock.going():
        if rank == 1 and sleeping:
            synchronize()
            time.sleep(lateness)
            clock.mark(UNKNOWN)
        elif rank == 1:
            extra.run(max(1, round(lateness / product)))
        trainer.step()
        clock.mark(BUSY)
        clock.step()


def sharded(rank: int, seconds: float, *, batch: int, layers: int, width: int) -> None:
    """Parameters, gradients and the optimiser's state lie on one rank each, and are gathered.

    What it takes longer than the same network on one GPU counts as exposed communication.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    network, loss = tasks.language(batch, layers, width)
    trainer = Trainer(network, loss)
    alone = length_of(trainer.step, sized(MEASURED, 0.1), at_once=2)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    network, loss = tasks.language(batch, layers, width)
    for block in network.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(network, mp_policy=policy)
    trainer = Trainer(network, loss)
    for _ in range(3):
        trainer.step()
    clock = ShareClock(seconds, rank)
    clock.begin([(NVLINK, alone, None)])
    while clock.going():
        trainer.step()
        clock.mark(BUSY)
        clock.step()
