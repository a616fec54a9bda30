"""Power of a GPU as a driver samples it, under loads whose steps are known: no hardware, no clock.

A load is an endless iterator of phases (seconds, watts); `sampled` looks at it through a sensor.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat

Phase = tuple[float, float]
Samples = list[tuple[float, float]]

REST, WAIT, WORK = 125.0, 260.0, 620.0  # watts


def sampled(
    load: Iterable[Phase],
    seconds: float,
    *,
    seed: int = 1,
    every: float = 0.02,
    over: float = 0.015,
    noise: float = 0.01,
    scatter: float = 0.001,
) -> Samples:
    """Return the samples of a sensor under a load: each sample the mean `over` some seconds before
    it (`every` at most), with normal noise, in parts of it; its time of writing scatters by so many
    seconds."""
    chance = random.Random(seed)
    energy_by = _energy(load)
    samples = []
    for number in range(1, int(seconds / every)):
        at = number * every
        before, now = energy_by(at - over), energy_by(at)
        watts = (now - before) / over * chance.gauss(1, noise)
        samples.append((at + chance.gauss(0, scatter), watts))
    return sorted(samples)


def _energy(load: Iterable[Phase]) -> Callable[[float], float]:
    """The joules that a load has used by a time; asked in order of time."""
    phases = iter(load)
    reached = energy = watts = 0.0

    def by(time: float) -> float:
        nonlocal reached, energy, watts
        while reached < time:
            length, watts = next(phases)
            reached += length
            energy += length * watts
        return energy - (reached - time) * watts

    return by


def held(samples: Samples, count: int) -> Samples:
    """The same from a sensor that has a new value only at each so many samples."""
    return [(time, samples[i - i % count][1]) for i, (time, _) in enumerate(samples)]


def averaged(samples: Samples, count: int) -> Samples:
    """The same from a sensor that reports the mean of so many samples."""
    values = [watts for _, watts in samples]
    ends = range(1, len(values) + 1)
    means = [sum(values[max(0, i - count) : i]) / min(i, count) for i in ends]
    return [(time, mean) for (time, _), mean in zip(samples, means, strict=True)]


def feeds(samples: Samples, seconds: float = 1.9) -> Iterator[Samples]:
    """The samples in portions, as reads of a buffer bring them."""
    portion: Samples = []
    for sample in samples:
        if portion and sample[0] - portion[0][0] >= seconds:
            yield portion
            portion = []
        portion.append(sample)
    yield portion


def steps(
    period: float, *, waits: float = 0.15, jitter: float = 0.01, seed: int = 2
) -> Iterator[Phase]:
    """Training: work, then a pause of this part of a step; its length scatters by that part."""
    chance = random.Random(seed)
    while True:
        length = period * max(0.5, chance.gauss(1, jitter))
        yield length * (1 - waits), WORK
        yield length * waits, WAIT


def accumulated(period: float, parts: int) -> Iterator[Phase]:
    """Training that accumulates gradients: equal parts, and a longer pause after the last one."""
    chance, last = random.Random(3), 0.3
    while True:
        part = period / (parts + last) * max(0.5, chance.gauss(1, 0.01))
        for _ in range(parts):
            yield part * 0.85, WORK
            yield part * 0.15, 430.0
        yield part * last, WAIT


def with_event(load: Iterator[Phase], phases: int, event: Iterable[Phase]) -> Iterator[Phase]:
    """A load that does something else after each so many phases: a validation, a line logged."""
    event = tuple(event)
    while True:
        yield from islice(load, phases)
        yield from event


def until(load: Iterator[Phase], seconds: float) -> Iterator[Phase]:
    """The first so many seconds of a load."""
    reached = 0.0
    for length, watts in load:
        yield min(length, seconds - reached), watts
        reached += length
        if reached >= seconds:
            return


def drifting(first: float, last: float, seconds: float) -> Iterator[Phase]:
    """Steps that take ever longer, evenly in so many seconds, then stay."""
    reached = 0.0
    while True:
        period = first + (last - first) * min(1.0, reached / seconds)
        yield period * 0.85, WORK
        yield period * 0.15, WAIT
        reached += period


def flat(watts: float = REST) -> Iterator[Phase]:
    return repeat((1.0, watts))


def requests(
    *, busy: float = 0.3, scatter: float = 0.5, pause: float = 0.25, seed: int = 4
) -> Iterator[Phase]:
    """A server: work of scattered length for each request, after pauses of exponential length."""
    chance = random.Random(seed)
    while True:
        yield chance.expovariate(1 / pause), REST
        yield busy * max(0.05, chance.gauss(1, scatter)), 430.0


def bursts(mean: float, seed: int = 5) -> Iterator[Phase]:
    """On and off at random, both for times of exponential length."""
    chance = random.Random(seed)
    while True:
        yield chance.expovariate(1 / mean), WORK
        yield chance.expovariate(1 / mean), REST


def wandering(step: float = 0.05, seed: int = 6) -> Iterator[Phase]:
    """A level that walks at random between rest and work."""
    chance = random.Random(seed)
    watts = 300.0
    while True:
        watts = min(WORK, max(REST, watts + chance.gauss(0, 25)))
        yield step, watts


def decoding(seed: int = 7) -> Iterator[Phase]:
    """A language model that answers: a long step for the prompt, then many short ones."""
    chance = random.Random(seed)
    while True:
        yield 0.05 + chance.expovariate(1 / 0.1), WORK
        for _ in range(int(chance.expovariate(1 / 40)) + 1):
            yield 0.018, 380.0
            yield 0.004, 300.0
        yield chance.expovariate(1 / 0.3), REST


def together(first: Iterator[Phase], second: Iterator[Phase]) -> Iterator[Phase]:
    """Two jobs on one GPU: their power above rest adds up."""
    (left, one), (right, other) = next(first), next(second)
    while True:
        length = min(left, right)
        yield length, min(WORK, one + other - REST)
        left, right = left - length, right - length
        if left <= 0:
            left, one = next(first)
        if right <= 0:
            right, other = next(second)


def then(*loads: Iterable[Phase]) -> Iterator[Phase]:
    """One load after the other."""
    return chain(*loads)
