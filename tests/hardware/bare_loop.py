"""`python -m tests.hardware.bare_loop STATE`: the driver calls of an agent, nothing around them.

What an agent asks of GPUs with GPM and eighteen links, as often as it does, until it is ended: the
price below which no agent with these signals gets. A test counts the agent's calls against these.
"""

import ctypes
import os
import re
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from agent.polling import intervals

LINKS = range(18)
ALL_LINKS = 0xFFFFFFFF
BYTES = (138, 139, 140, 141)
ERRORS = (161, 162, 163)
THROTTLED = (74, 76, 77, 79, 269, 270, 271)
GPM_METRICS = (1, 2, 3, 5, 10, 20, 21, 60, 61)
GPM_WINDOW = (1, 2, 10)
POWER_SAMPLES = 0

Call = Callable[[Any], Any]


class State(NamedTuple):
    """Conditions under which an agent reads more often."""

    on_gpu: bool  # a process is on each GPU
    links_full: bool  # more than half


STATES = {
    "idle": State(on_gpu=False, links_full=False),
    "all-reduce": State(on_gpu=True, links_full=True),
    "training": State(on_gpu=True, links_full=False),
}


def _declared() -> Iterator[tuple[float, str | int]]:
    """Seconds between two calls, and the call, of each metric that needs no code in the agent."""
    for file in sorted((Path(intervals.__file__).parents[1] / "sources").glob("*.toml")):
        for table in tomllib.loads(file.read_text(encoding="utf-8")).values():
            call = table.get("call", {})
            for one in call.values() if isinstance(call, dict) else (call,):
                yield getattr(intervals, table["every"].upper()), one


def getter_of(call: str) -> tuple[str, tuple[int, ...]]:
    """The name and the arguments of a call such as `TotalEccErrors(0, 1)` or `RemappedRows.3`."""
    name, _, arguments = call.partition(".")[0].partition("(")
    return name, tuple(map(int, re.findall(r"\d+", arguments)))


DECLARED = tuple(_declared())

GETTERS: tuple[tuple[float, str, tuple[Any, ...]], ...] = (
    (intervals.TICK, "UtilizationRates", ()),
    (intervals.TICK, "ClockInfo", (1,)),
    (intervals.TICK, "CurrentClocksEventReasons", ()),
    (intervals.TICK, "TemperatureV", (0,)),
    (intervals.PROCESSES, "ComputeRunningProcesses", ()),
    (intervals.PROCESSES, "GraphicsRunningProcesses", ()),
    (intervals.ENERGY, "TotalEnergyConsumption", ()),
    *((intervals.LINKS, "NvLinkState", (link,)) for link in LINKS),
    (intervals.LINKS, "MigMode", ()),
    *((every, *getter_of(call)) for every, call in DECLARED if isinstance(call, str)),
)
"""Seconds between two calls, the call's name after `nvmlDeviceGet`, its further arguments."""

FIELDS: tuple[tuple[float, tuple[Any, ...]], ...] = (
    (intervals.THROTTLE, THROTTLED),
    (intervals.LINKS, tuple((field, link) for link in LINKS for field in BYTES)),
    (intervals.LINKS, tuple((field, link) for link in LINKS for field in ERRORS)),
    *((every, (call,)) for every, call in DECLARED if isinstance(call, int)),
)
"""Seconds between two calls of `nvmlDeviceGetFieldValues`, and the fields."""


def calls_of(library: Any, state: State) -> list[tuple[float, Call]]:
    """The calls for one GPU, each with its interval."""
    totals = tuple((field, ALL_LINKS) for field in BYTES)
    often, seldom = intervals.NVLINK_TOTALS_BUSY, intervals.NVLINK_TOTALS_QUIET
    fields = (*FIELDS, (often if state.links_full else seldom, totals))
    return [
        *((every, _getter(library, name, arguments)) for every, name, arguments in GETTERS),
        *((every, _fields(library, asked)) for every, asked in fields),
        (intervals.TICK, _memory(library)),
        (intervals.ACTIVITY_BUSY if state.on_gpu else intervals.ACTIVITY_IDLE, _gpm(library)),
        (intervals.LINKS, _fabric(library)),
        *([(intervals.POWER_BUFFER, _power_samples(library))] if state.on_gpu else []),
        *([(intervals.WINDOWS, _gpm(library, GPM_WINDOW))] if state.on_gpu else []),
        # whether memory is in use though no process is listed
        *([] if state.on_gpu else [(intervals.PROCESSES, _memory(library))]),
    ]


def _getter(library: Any, name: str, arguments: tuple[Any, ...]) -> Call:
    function = getattr(library, f"nvmlDeviceGet{name}")
    return lambda handle: function(handle, *arguments)


def _fields(library: Any, asked: Sequence[Any]) -> Call:
    questions = list(asked)
    return lambda handle: library.nvmlDeviceGetFieldValues(handle, questions)


def _memory(library: Any) -> Call:
    return lambda handle: library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)


def _fabric(library: Any) -> Call:
    def ask(handle: Any) -> None:
        info = library.c_nvmlGpuFabricInfo_v2_t()
        library.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))

    return ask


def _power_samples(library: Any) -> Call:
    last = 0

    def ask(handle: Any) -> None:
        nonlocal last
        _, samples = library.nvmlDeviceGetSamples(handle, POWER_SAMPLES, last)
        last = samples[-1].timeStamp

    return ask


def _gpm(library: Any, metrics: Sequence[int] = GPM_METRICS) -> Call:
    question = library.c_nvmlGpmMetricsGet_t()
    question.version = library.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics = len(metrics)
    for slot, which in zip(question.metrics, metrics, strict=False):
        slot.metricId = which
    samples: list[Any] = []

    def ask(handle: Any) -> None:
        if not samples:
            samples.extend(library.nvmlGpmSampleAlloc() for _ in range(2))
            library.nvmlGpmSampleGet(handle, samples[0])
            return
        older, newer = samples
        library.nvmlGpmSampleGet(handle, newer)
        question.sample1, question.sample2 = older, newer
        library.nvmlGpmMetricsGet(question)
        samples.reverse()

    return ask


class _Repeated:
    """One call of one GPU. Its places lie as the agent's do: GPUs take turns in an interval."""

    def __init__(self, every: float, place: float, call: Callable[[], Any]) -> None:
        self.due, self.call = 0.0, call
        self._every, self._place = every, place * every

    def done(self, now: float) -> None:
        self.due = now + self._every
        if self._place:
            self.due -= (now - self._place) % self._every


class BareLoop:
    """All calls for all GPUs of a library."""

    def __init__(self, library: Any, state: State) -> None:
        self._error = library.NVMLError
        count = library.nvmlDeviceGetCount()
        self._calls = [_Repeated(intervals.REDISCOVERY, 0.0, library.nvmlDeviceGetCount)]
        for index in range(count):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            self._calls += [
                _Repeated(every, index / count, partial(call, handle))
                for every, call in calls_of(library, state)
            ]

    def tick(self, now: int) -> None:
        """Ask what is due in this second of its own."""
        for one in self._calls:
            if one.due <= now:
                one.done(now)
                with suppress(self._error):
                    one.call()


def library_here() -> Any:
    """NVML; that of a simulated machine where DGX_TRIALS_ON names a system."""
    system = os.environ.get("DGX_TRIALS_ON")
    if system:
        from agent import simulator
        from agent.clock import SystemClock

        return simulator.SimulatedSystem(simulator.parse(system), SystemClock()).nvml
    import pynvml

    return pynvml


def main(state: str) -> None:
    """Ask for ever."""
    library = library_here()
    library.nvmlInit()
    loop, start, now = BareLoop(library, STATES[state]), time.monotonic(), 0
    while True:
        loop.tick(now)
        now += 1
        time.sleep(max(0.0, start + now - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
