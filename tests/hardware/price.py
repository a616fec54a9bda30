"""`python -m tests.hardware.price [--idle S ...]`: the price of watching every GPU.

CPU and memory of the agent beside a bare loop of the same driver calls, nvitop-exporter,
`nvidia-smi dmon` and node_exporter, in turns; scrape times; what training loses. A line a figure.
DGX_TRIALS_ON=SYSTEM tries it on a simulated machine: what it costs there says nothing.

Programs never run side by side where both ask the driver: they would spin on its lock.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from agent.polling import intervals
from tests.hardware import cost
from tests.hardware.bare_loop import library_here
from tests.hardware.bench import Figure, Point, running, slope
from tests.hardware.cost import AGENT, BARE, MIB, SCRAPE, Program

SETTLES = 2.0
"""Seconds after a program is ready that do not count: libraries are loaded, all is asked once."""

GOAL_GPUS = 8
GOALS = {"idle": 15.0, "all-reduce": 40.0}
"""CPU ms a second of the agent on so many GPUs."""

OVER_BARE = 1.15
SLOWED = 0.05  # %
RESIDENT_OVER_BARE = 1.25
AFTER_SCRAPE = 0.1
"""Seconds after an answer in which the rest of its work falls due."""

SCRAPE_GOAL = 50.0  # ms, 99th percentile: a scrape must not be felt
SCENARIOS = {"idle": "idle", "all-reduce": "nvlink-saturated", "training": "training"}
LOAD_SECONDS = 1200.0  # longer than any part: loads are ended, and do not end


class Window(NamedTuple):
    """One program measured for a while."""

    program: str
    state: str
    cpu: float  # ms a second
    resident: float  # MiB
    seconds: float

    def __str__(self) -> str:
        head = f"     {self.program}, {self.state}, {self.seconds:.1f} s"
        return f"{head}: {self.cpu:.2f} ms/s {self.resident:.1f} MiB"


class Spent(NamedTuple):
    """CPU of a process within some seconds."""

    cpu: float  # s
    seconds: float


class Slots(NamedTuple):
    """A stretch of training (CLOCK_MONOTONIC, s) with the agent, and its neighbour without."""

    watched: tuple[float, float]
    alone: tuple[float, float]


@dataclass(slots=True)
class Durations:
    """Seconds of each kind of window, and how often they come in turns."""

    idle: float = 30.0
    all_reduce: float = 20.0
    slot: float = 10.0  # of training
    others: float = 6.0
    turns: int = 2
    other_turns: int = 2
    pairs: int = 6


@dataclass(slots=True)
class Measuring:
    """Windows of one state, one program after the other."""

    state: str
    windows: list[Window] = field(default_factory=list)
    sources: dict[str, float] = field(default_factory=dict)  # ms a second of the last window

    def measure(self, programs: Sequence[Program], seconds: float) -> None:
        """Start these, measure them side by side, and end them."""
        with ExitStack() as stack:
            pids = [stack.enter_context(program.running()) for program in programs]
            self.watch(programs, pids, seconds)

    def watch(
        self, programs: Sequence[Program], pids: Sequence[int], seconds: float
    ) -> tuple[float, float]:
        """Measure what runs already; from when to when (CLOCK_MONOTONIC, s)."""
        asked = [program for program in programs if program.port]
        for program in asked:
            program.fetch()  # the first costs more
        time.sleep(SETTLES)
        sources = self._source_seconds(programs[0])
        start, before = time.monotonic(), [cost.cpu_seconds(pid) for pid in pids]
        scrapes: dict[str, list[Spent]] = {program.name: [] for program in programs}
        count = max(1, round(seconds / SCRAPE))
        for number in range(count):
            _sleep_until(start + seconds * (number + 0.5) / count)
            for program, pid in zip(programs, pids, strict=True):
                if program.port:
                    scrapes[program.name].append(_scraped(program, pid))
        _sleep_until(start + seconds)
        after, lasted = [cost.cpu_seconds(pid) for pid in pids], time.monotonic() - start
        for program, pid, early, late in zip(programs, pids, before, after, strict=True):
            cpu = cpu_rate(Spent(late - early, lasted), scrapes[program.name]) * 1e3
            memory = cost.resident_bytes(pid) / MIB
            self.windows.append(Window(program.name, self.state, cpu, memory, lasted))
        self.sources = {
            name: (late - sources.get(name, 0.0)) / lasted * 1e3
            for name, late in self._source_seconds(programs[0]).items()
        } or self.sources
        return start, start + lasted

    def _source_seconds(self, program: Program) -> dict[str, float]:
        return cost.source_seconds(program) if program.name == AGENT else {}


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _scraped(program: Program, pid: int) -> Spent:
    start, before = time.monotonic(), cost.cpu_seconds(pid)
    program.fetch()
    time.sleep(AFTER_SCRAPE)
    return Spent(cost.cpu_seconds(pid) - before, time.monotonic() - start)


def cpu_rate(window: Spent, scrapes: Sequence[Spent]) -> float:
    """CPU seconds a second of a program that is scraped once in SCRAPE seconds, however short the
    window in which `scrapes` of it were made."""
    scraping, took = sum(one.cpu for one in scrapes), sum(one.seconds for one in scrapes)
    rest = (window.cpu - scraping) / (window.seconds - took)
    if not scrapes:
        return rest
    return rest + (scraping - rest * took) / len(scrapes) / SCRAPE


def mean_cpu(windows: Sequence[Window], program: str) -> float | None:
    """CPU ms a second over all windows of a program, each as long as it was."""
    mine = [window for window in windows if window.program == program]
    total = sum(window.seconds for window in mine)
    return sum(w.cpu * w.seconds for w in mine) / total if total else None


def cpu_figures(measuring: Measuring, gpus: int) -> Iterator[Figure]:
    """Return the cost of each program in one state, and the agent's cost against its goals."""
    windows, state = measuring.windows, measuring.state
    resident: dict[str, float] = {}
    for name in dict.fromkeys(window.program for window in windows):
        mine = [window for window in windows if window.program == name]
        mean = mean_cpu(mine, name)
        assert mean is not None
        each = " ".join(f"{window.cpu:.2f}" for window in mine)
        note = f"in turns {each}"
        most = float("inf")
        if name == AGENT and state in GOALS:
            most = GOALS[state] * gpus / GOAL_GPUS
            goal = f"{GOALS[state]:g} on {GOAL_GPUS} GPUs"
            note += f"; the goal, {goal}, scaled by {gpus}/{GOAL_GPUS}"
        yield Figure(f"CPU {name}, {state}", mean, 0.0, most, "ms/s", note)
        resident[name] = max(window.resident for window in mine)
        yield Figure(f"memory {name}, {state}", resident[name], 0.0, float("inf"), "MiB")
    if {AGENT, BARE} <= resident.keys():
        ratio = resident[AGENT] / resident[BARE]
        yield Figure(f"memory agent over bare loop, {state}", ratio, 0.0, RESIDENT_OVER_BARE, "")
    own, bare = mean_cpu(windows, AGENT), mean_cpu(windows, BARE)
    if own and bare:
        pairs = zip(_cpus(windows, AGENT), _cpus(windows, BARE), strict=False)
        note = "in turns " + " ".join(f"{a / b:.3f}" for a, b in pairs)
        name = f"CPU agent over bare loop, {state}"
        yield Figure(name, own / bare, 0.0, OVER_BARE, "", note)


def _cpus(windows: Sequence[Window], program: str) -> list[float]:
    return [window.cpu for window in windows if window.program == program]


def by_source(measuring: Measuring) -> Iterator[str]:
    """Return the division of the agent's CPU time, the largest first: for states above its goal."""
    own = mean_cpu(measuring.windows, AGENT) or 0.0
    costliest = sorted(measuring.sources.items(), key=lambda item: -item[1])
    shown = " ".join(f"{name} {ms:.2f}" for name, ms in costliest if ms >= 0.01)
    rest = own - sum(measuring.sources.values())
    yield f"    {measuring.state}, ms/s by source in the last window: {shown}; all else {rest:.2f}"


def scrape_figures(milliseconds: Sequence[float]) -> Iterator[Figure]:
    """Return the duration of scrapes."""
    worst = statistics.quantiles(milliseconds, n=100, method="inclusive")[98]
    note = f"of {len(milliseconds)}"
    yield Figure("scrape, median", statistics.median(milliseconds), 0.0, SCRAPE_GOAL, "ms", note)
    yield Figure("scrape, 99th percentile", worst, 0.0, SCRAPE_GOAL, "ms", note)


def slowed_figure(pairs: Sequence[tuple[float, float]]) -> Figure:
    """By how much steps are longer with the agent, from pairs of lengths with and without it."""
    found = [(watched / alone - 1.0) * 100 for watched, alone in pairs]
    error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
    each = " ".join(f"{one:+.3f}" for one in found)
    note = f"standard error {error:.3f} of {len(found)} pairs: {each}"
    mean = statistics.fmean(found)
    return Figure("training slowed by the agent", mean, float("-inf"), SLOWED, "%", note)


class Price:
    """Part 1 on this machine, or on a simulated one where DGX_TRIALS_ON names a system."""

    def __init__(self, gpus: int, durations: Durations) -> None:
        self._gpus = gpus
        self._for = durations
        self._system = os.environ.get("DGX_TRIALS_ON")
        self._others = cost.others()

    def run(self) -> Iterator[Figure | Window | str]:
        """Idle, under all-reduce, under training: windows as they come, then the figures."""
        minute = intervals.LINKS / self._gpus
        if self._for.idle % minute:
            yield f"idle windows should be multiples of {minute:g} s: links are read once a minute"
        with self._agent("idle").running():
            pass  # bytecode is written, pages are read
        for state, seconds in (("idle", self._for.idle), ("all-reduce", self._for.all_reduce)):
            with self._load(state):
                measuring = Measuring(state)
                for turn in range(self._for.turns):
                    measuring.measure([self._agent(state)], seconds)
                    measuring.measure([cost.bare_loop(state)], seconds)
                    self._measure_others(measuring, turn)
                yield from self._report(measuring)
                if state == "idle":
                    yield from scrape_figures(self._scrapes())
        yield from self._training()

    def _measure_others(self, measuring: Measuring, turn: int) -> None:
        groups = list(self._others) if turn < self._for.other_turns else []
        while groups:
            group = groups.pop(0)
            try:
                measuring.measure(group, self._for.others)
            except (RuntimeError, OSError) as error:  # the agent's price is still to be had
                print(f"left out from now on: {error}", flush=True)
                alone = [[one] for one in group] if len(group) > 1 else []
                self._others = [*(g for g in self._others if g is not group), *alone]
                groups += alone

    def _report(self, measuring: Measuring) -> Iterator[Figure | Window | str]:
        yield from measuring.windows
        figures = list(cpu_figures(measuring, self._gpus))
        yield from figures
        if not all(figure.holds for figure in figures):
            yield from by_source(measuring)

    def _agent(self, state: str) -> Program:
        if self._system:
            return cost.agent("--simulate", f"{self._system}:{SCENARIOS[state]}")
        return cost.agent()

    def _load(self, state: str) -> AbstractContextManager[object]:
        if self._system or state == "idle":
            return nullcontext()
        return running(state, LOAD_SECONDS)

    def _scrapes(self) -> list[float]:
        agent = self._agent("idle")
        took = []
        with agent.running():
            time.sleep(SETTLES)
            for _ in range(50):
                start = time.perf_counter()
                agent.fetch()
                took.append((time.perf_counter() - start) * 1e3)
                time.sleep(0.02)
        return took

    def _training(self) -> Iterator[Figure | Window | str]:
        measuring, slots = Measuring("training"), []
        with _training_load(is_simulated=self._system is not None) as lengths:
            for pair in range(self._for.pairs):
                slots.append(self._pair(measuring, agent_first=pair % 2 == 0))
                if pair < self._for.turns:
                    measuring.measure([cost.bare_loop("training")], self._for.slot)
                    self._measure_others(measuring, pair)
            yield from self._report(measuring)
            if lengths is not None:
                yield slowed_figure([(lengths(*one.watched), lengths(*one.alone)) for one in slots])

    def _pair(self, measuring: Measuring, *, agent_first: bool) -> Slots:
        before = None if agent_first else self._alone()
        agent = self._agent("training")
        with agent.running() as pid:
            watched = measuring.watch([agent], [pid], self._for.slot)
        return Slots(watched, before or self._alone())

    def _alone(self) -> tuple[float, float]:
        time.sleep(SETTLES)
        start = time.monotonic()
        time.sleep(self._for.slot)
        return start, time.monotonic()


@contextmanager
def _training_load(*, is_simulated: bool) -> Iterator[Callable[[float, float], float] | None]:
    """DDP training of GPT-2 on every GPU; the mean length of a step between two moments."""
    if is_simulated:
        yield None
        return
    with running("training", LOAD_SECONDS) as load:

        def length(since: float, until: float) -> float:
            found = [one for one in list(load.lines) if since <= one["at"] <= until]
            if len(found) < 2:
                raise RuntimeError(f"no step of training between {since:.1f} and {until:.1f}")
            return 1.0 / slope([Point(one["at"], one["steps"]) for one in found])

        yield length


def main() -> int:
    """Print every window and figure; 1 if a figure is out of its bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in asdict(Durations()).items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(default), default=default, metavar="N")
    library = library_here()
    library.nvmlInit()
    gpus = int(library.nvmlDeviceGetCount())
    library.nvmlShutdown()
    if gpus < 2:
        parser.error(f"this machine has {gpus} GPU: two are needed")
    wrong = 0
    for line in Price(gpus, Durations(**vars(parser.parse_args()))).run():
        print(line, flush=True)
        wrong += isinstance(line, Figure) and not line.holds
    print(f"{wrong} figures out of their bounds")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
