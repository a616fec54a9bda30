"""Savings from ending each cause of lost time of a job, the next limit included. Pure.

The GPUs of a job wait for one another, so the slowest sets the pace. What a GPU loses by waiting
for a peer is not its own: a cause is worth what the slowest GPU becomes faster by without it, and
no more than until another one is the slowest.
"""

from collections.abc import Mapping

from agent.jobs.job import Saving
from agent.model import BUSY, GAINED_BY, Cause, GpuKey, Pair, State

PEER: Pair = (State.STARVED, Cause.PEER)
LEAST = 0.01
"""Share of the GPU-seconds from which a cause is worth a line."""

ALIKE = 0.05
"""Share of the slowest GPU's time within which no GPU of a job is called the slowest."""

Seconds = Mapping[Pair, float]


def savings(by_gpu: Mapping[GpuKey, Seconds]) -> tuple[Saving, ...]:
    """Return the loss of each cause and the saving of its end, the most saved first."""
    whole = sum(sum(seconds.values()) for seconds in by_gpu.values())
    if whole <= 0:
        return ()
    lost: dict[Pair, float] = {}
    for seconds in by_gpu.values():
        for pair, part in seconds.items():
            if pair[0] in GAINED_BY:
                lost[pair] = lost.get(pair, 0.0) + part
    found = [_saving(pair, part, by_gpu) for pair, part in lost.items() if part >= LEAST * whole]
    return tuple(sorted(found, key=lambda saving: (-saving.saved, -saving.lost, saving.pair)))


def _saving(pair: Pair, lost: float, by_gpu: Mapping[GpuKey, Seconds]) -> Saving:
    own = {gpu: _own(seconds) for gpu, seconds in by_gpu.items()}
    if pair == PEER:  # an even load: each GPU as long at work as all of them on average
        without = dict.fromkeys(own, sum(own.values()) / len(own))
    else:
        without = {gpu: own[gpu] - by_gpu[gpu].get(pair, 0.0) for gpu in own}
    slowest = max(without, key=lambda gpu: (without[gpu], own[gpu]))
    saved = max(0.0, max(own.values()) - without[slowest])
    rest = [
        (part, of)
        for of, part in by_gpu[slowest].items()
        if of[0] in GAINED_BY and of not in (pair, PEER) and part >= LEAST * own[slowest]
    ]
    differ = min(without.values()) < (1 - ALIKE) * without[slowest]
    return Saving(pair, lost, saved, max(rest)[1] if rest else BUSY, slowest if differ else None)


def _own(seconds: Seconds) -> float:
    """Seconds of a GPU that are not spent waiting for a peer."""
    return sum(part for pair, part in seconds.items() if pair != PEER)
