"""Cost of the pulse, in CPU milliseconds a second and GPU: `python -m tests.benchmarks.pulse`.

Recorded and made power is fed as the driver's buffer is read, 1.9 s at a time. Each line is the
cheapest of some runs, in which no one else took the caches and the cores of this machine, and the
median of them.
"""

import time
from collections.abc import Iterator
from statistics import mean, median

from agent.jobs.pulse import Pulse
from tests.support import power_signals as power
from tests.support.power_signals import Samples
from tests.support.power_traces import trace

RUNS = 15
GOAL = 0.4

LOADS: dict[str, Samples] = {
    "GPT-2, steps of 0.21 s": trace("gpt-0").samples,
    "ResNet-50, steps of 0.12 s": trace("resnet-256").samples,
    "pipeline, steps of 0.33 s": trace("pipeline-0").samples,
    "steps too short": trace("gpt-short").samples,
    "irregular inference": trace("decode").samples,
    "spinning": trace("spinning").samples,
    "made, steps of 2.2 s": power.sampled(power.steps(2.2), 60),
    "made, steps of 5 s": power.sampled(power.steps(5.0), 60),
}


def costs(samples: Samples, runs: int = RUNS) -> list[float]:
    """CPU milliseconds a second of samples, of each run; a run plays them four times over."""
    length = samples[-1][0] - samples[0][0] + 0.02
    longer = [(at + n * length, watts) for n in range(4) for at, watts in samples]
    portions = list(power.feeds(longer))
    found = []
    for _ in range(runs):
        pulse = Pulse()
        began = time.thread_time()
        for portion in portions:
            pulse.feed(portion)
        found.append((time.thread_time() - began) * 1e3 / (4 * length))
    return found


def lines(runs: int = RUNS) -> Iterator[str]:
    """The table, a load a line."""
    yield f"{'CPU ms a second and GPU':28}{'cheapest':>9}{'median':>9}"
    cheapest = []
    for name, samples in LOADS.items():
        found = costs(samples, runs)
        cheapest.append(min(found))
        yield f"{name:28}{min(found):9.3f}{median(found):9.3f}"
    yield f"{'mean':28}{mean(cheapest):9.3f}"
    yield f"{'goal':28}{GOAL:9.3f}"


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
