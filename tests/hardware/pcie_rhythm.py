"""`python -m tests.hardware.pcie_rhythm LOAD ... [--seconds S] [--every S]`: steps seen over PCIe.

Reads the counter of received bytes far more often than an agent does while labelled loads run on
the first GPU, and looks for steps in it with the agent's own estimate, beside the 20 ms power
samples. A line a load: the step by its own clock, what both tell, and what a reading costs.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import pynvml

from agent.jobs.pulse import Pulse, PulseReading
from tests.hardware.raw_traces.driver import SampleBuffer
from tests.hardware.raw_traces.running import PlayedLoad

RECEIVED = 198  # NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 32 bits
POWER = 0  # NVML_TOTAL_POWER_SAMPLES
AFTER = 4.0
"""Seconds until a load has told what it did."""

COPIES = 3.0
"""Times the median rate that counts at most: one copy would outweigh all launches."""

Series = list[tuple[float, float]]


def recorded(seconds: float, every: float) -> tuple[Series, Series, float]:
    """Received bytes a second and power (W) of the first GPU, and the CPU time of one reading."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    power = SampleBuffer(handle, POWER)
    counts: list[tuple[float, int]] = []
    cost = 0.0
    due = time.monotonic()
    end = due + seconds
    while due < end:
        busy = time.thread_time()
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [RECEIVED])
        cost += time.thread_time() - busy
        counts.append((time.monotonic(), value.value.uiVal))
        if len(counts) % 100 == 0:
            power.read()
        due += every
        time.sleep(max(0.0, due - time.monotonic()))
    power.read()
    rates = [(b[0], (b[1] - a[1]) % 2**32 / (b[0] - a[0])) for a, b in pairwise(counts)]
    most = COPIES * statistics.median(rate for _, rate in rates)
    received = [(at, min(rate, most)) for at, rate in rates]
    return received, [(at, watts) for at, watts in power.rows], cost / len(counts)


def told(reading: PulseReading) -> str:
    """The step, or why there is none."""
    if reading.step_seconds is None:
        return reading.reason.value if reading.reason else "none"
    return f"{reading.step_seconds:.4f}"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="+", metavar="LOAD")
    parser.add_argument("--seconds", type=float, default=14.0)
    parser.add_argument("--every", type=float, default=0.01)
    given = parser.parse_args(arguments)
    pynvml.nvmlInit()
    for name in given.loads:
        load = PlayedLoad(name, given.seconds + 60)
        try:
            load.go()
            steady = load.await_steady(60.0)
            received, power, cost = recorded(given.seconds, given.every)
            load.await_truth(steady + given.seconds, AFTER)
            (truth,) = load.truths().values()
            lengths = truth.lengths(steady, steady + given.seconds)
        finally:
            load.stop()
        step = f"{statistics.median(lengths):.4f}" if lengths else "none"
        seen = {"PCIe": Pulse().feed(received), "power": Pulse().feed(power)}
        figures = ", ".join(f"{signal} {told(reading)}" for signal, reading in seen.items())
        print(f"{name}: step {step}; {figures}; {cost * 1e6:.0f} us a reading", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
