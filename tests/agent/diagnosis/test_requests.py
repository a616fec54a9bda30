"""Servers: how long they work, and that only what is seen to serve waits for requests. Processes
that do nothing, as far as can be seen, hold no GPU while part of them is hidden."""

import dataclasses
from collections.abc import Iterator
from errno import EACCES, ENOENT
from itertools import pairwise
from os import strerror
from random import Random
from re import search
from typing import Any, cast

import pytest
from msgspec.structs import replace

from agent import simulator as simulation
from agent.bounds import HOUR
from agent.diagnosis.accounting import STATE, STATE_SECONDS
from agent.diagnosis.division import divide_second
from agent.diagnosis.gpu_history_tracker import Bursts, GpuHistoryTracker
from agent.diagnosis.inactive_share import divide_inactive, serves
from agent.diagnosis.tick_context import GpuHistory, LastTick
from agent.hardware.files import FileTree
from agent.model import Cause, State
from agent.simulator import loads
from agent.simulator.models import ALL
from agent.simulator.scenarios import SCENARIOS, possible
from agent.sources import activity, process, workload
from tests.agent.diagnosis.test_division import PEER, PEER_LABELS, job
from tests.support.evidence import GPU, KEY, Figures, evidence, threads
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import AgentBench, first_gpus, simulated, watched
from tests.support.nightly import NIGHTLY, covering

ANSWER = 0.12
"""Seconds of work for a request."""

WATCHED, AFTER = 60, 40
"""Seconds that each server is watched, once it has run for so long."""


def phases(load: float, length: float) -> Iterator[tuple[float, float]]:
    """Begin and end (s) of each stretch of work, where requests arrive as in a Poisson process and
    wait for one another."""
    random, arrives, begun, free = Random(7), 0.0, 0.0, 0.0
    while load and arrives < length:
        arrives += random.expovariate(load / ANSWER)
        if arrives > free:
            yield begun, min(free, length)
            begun = free = arrives
        free += ANSWER
    yield begun, min(free, length)


def server(load: float, length: float) -> tuple[loads.GpuWork, list[tuple[float, float]]]:
    works = [p for p in phases(load, length) if p[0] < p[1]]
    (_, rest), (_, burst) = loads.PARTS["starved-disk"][0].works[0].phases
    answer = replace(burst, receive=0.0001)
    edges = [0.0, *(moment for work in works for moment in work), length]
    parts = tuple(
        ((end - begin) / length, answer if place % 2 else rest)
        for place, (begin, end) in enumerate(pairwise(edges))
        if end > begin
    )
    work = loads.GpuWork(parts, step=length, paced=False, memory=0.5, ripple=0.004)
    return work, works


def shares(bench: AgentBench, seconds: int) -> dict[str, float]:
    """Return the shares of GPU 0 over the next seconds, by `state/cause`."""

    def now() -> dict[str, float]:
        found = bench.samples.where(STATE_SECONDS, gpu="0")
        return {f"{key[2]}/{key[3]}": value for key, value in found.items()}

    before = now()
    bench.run(seconds)
    return {pair: (value - before[pair]) / seconds for pair, value in now().items()}


def serving(
    monkeypatch: pytest.MonkeyPatch, system: str, load: float, job: loads.SimulatedJob
) -> tuple[AgentBench, list[tuple[float, float]]]:
    work, works = server(load, float(AFTER + WATCHED))
    monkeypatch.setitem(loads.PARTS, "no-demand", (loads.ScenarioLoad((work,), job),))
    return simulated(f"{system}:no-demand", gpus=1).run(AFTER), works


@pytest.mark.parametrize("system", ["dgx-h100", pytest.param("titan-x-pascal", marks=NIGHTLY)])
@pytest.mark.parametrize(
    "load", [0.0, 0.05, 0.4, *(pytest.param(one, marks=NIGHTLY) for one in (0.2, 0.7, 1.0))]
)
def test_a_server_works_as_long_as_it_does(
    monkeypatch: pytest.MonkeyPatch, system: str, load: float
) -> None:
    threads = loads.SimulatedJob((loads.ThreadLoad(load),), alone=True)
    bench, works = serving(monkeypatch, system, load, threads)
    true = sum(max(0.0, end - max(begin, AFTER)) for begin, end in works) / WATCHED
    found = shares(bench, WATCHED)
    assert found["busy/none"] == pytest.approx(true, abs=0.05), (true, found)
    if load in (0.05, 0.2, 0.4):
        waits = found["idle/requests"] + found["starved/unknown"]
        assert waits == pytest.approx(1.0 - true, abs=0.10), found
    if load in (0.05, 0.2):
        assert found["idle/requests"] > 0.9 * (1.0 - true), found
    if not load:
        assert found["idle/requests"] == 0.0, "it never had a request"


@pytest.mark.parametrize(
    ("cores", "helpers"),
    [(0.01, 0), (1.0, 0), (0.7, 0), (0.01, 4)],
    ids=["sleeps", "polls", "tokenizes", "loaders"],
)
def test_a_server_without_requests_is_one_while_nothing_else_explains_its_rest(
    monkeypatch: pytest.MonkeyPatch, cores: float, helpers: int
) -> None:
    job = loads.SimulatedJob((loads.ThreadLoad(cores),), helpers, loads.ThreadLoad(0.9), alone=True)
    bench, _ = serving(monkeypatch, "dgx-h100", 0.02, job)
    states = bench.samples.where(STATE, gpu="0").items()
    pairs = [key[2:] for key, value in states if value]
    assert (pairs == [("idle", "requests")]) is not (bool(helpers) or cores == 0.7)


def test_bursts_are_remembered_for_an_hour() -> None:
    bursts, random, now = Bursts(), Random(3), 0.0
    for _ in range(60):
        now += 1.0
        bursts.take(random.choice((0.0, 0.0, 0.12, 0.5)), now, 0.01)
    assert bursts.seen(now)
    for _ in range(3000):
        now += 1.0
        bursts.take(0.0, now, 0.01)
    assert bursts.seen(now)
    assert not bursts.seen(now + HOUR)


def test_only_a_job_on_one_host_without_steps_files_or_data_waits_for_requests() -> None:
    figures = {**threads(GPU, 0.01), (workload.RECEIVED, GPU): 2e3, (activity.ACTIVITY, GPU): 0.0}
    served = GpuHistory(bursts=True)

    def waits(more: Figures, history: GpuHistory = served) -> bool:
        e = evidence({**figures, **more}, history=history)
        return serves(e) and divide_inactive(e)[Cause.REQUESTS].seconds == pytest.approx(0.99)

    assert waits({})
    assert not waits({}, GpuHistory())
    assert not waits({(workload.RECEIVED, GPU): 1e6})
    assert not waits({(workload.CGROUP_READ, GPU): 1e6})
    assert not waits({(workload.HOSTS, GPU): 2.0})
    assert not waits({(workload.THREADS, (*GPU, "working", "running")): 0.5})
    assert not waits({(workload.THREADS, (*GPU, "launching", "blocked")): 0.1})
    unknown = evidence({key: one for key, one in figures.items() if key[0] != workload.RECEIVED})
    unknown.history = served
    assert not serves(unknown)
    stepping = LastTick(stepping=frozenset((KEY.uuid,)))
    assert not serves(evidence(figures, history=served, last=stepping))


@pytest.mark.parametrize(
    ("received", "helpers", "deliveries", "found"),
    [
        (2e5, 0.06, True, {Cause.REQUESTS: 0.59, Cause.CPU: 0.01}),
        (12e6, 0.0, True, {Cause.UNKNOWN: 0.6}),
        (12e6, 0.0, False, {Cause.NETWORK: 0.6}),
        (4e6, 0.0, False, {Cause.UNKNOWN: 0.6}),
        (30e6, 0.0, True, {Cause.NETWORK: 0.6}),
    ],
    ids=["messages", "recordings", "an even stream", "a slow one", "too much beside its work"],
)
def test_data_that_comes_in_bursts_and_is_small_beside_work_names_no_cause(
    received: float, helpers: float, found: dict[Cause, float], *, deliveries: bool
) -> None:
    figures = {**threads(GPU, 0.4), (workload.RECEIVED, GPU): received}
    figures |= {(activity.ACTIVITY, GPU): 0.4}
    figures[workload.THREADS, (*GPU, "working", "running")] = helpers
    history = GpuHistory(bursts=True, deliveries=deliveries)
    shares = divide_inactive(evidence(figures, history=history))
    left = {cause: one.seconds for cause, one in shares.items() if one.seconds > 1e-6}
    assert left == pytest.approx(found)


@pytest.mark.parametrize(("least", "uneven"), [(1e6, True), (3.8e6, False)])
def test_requests_bring_bytes_in_bursts_and_a_link_evenly(least: float, *, uneven: bool) -> None:
    memory = GpuHistoryTracker()
    for now in range(40):
        figures: Figures = {
            (process.PROCESS, (*GPU, "10")): 1.0,
            (process.PROCESSES, GPU): 1.0,
            (workload.RECEIVED, GPU): 4e6 if now % 2 else least,
        }
        memory.update(evidence(figures), float(now))
    assert memory.seen.deliveries is uneven


@pytest.mark.parametrize(
    ("rank", "carried", "found"), [("1", False, 0.8), ("0", False, 0.0), ("", True, 0.8)]
)
def test_a_rank_asleep_waits_for_the_rank_that_works(
    rank: str, carried: bool, found: float
) -> None:
    """At a barrier of Gloo or MPI, over a network or NVLink; trials of a sweep have no ranks. A
    server of two GPUs waits for requests only for as long as neither works."""
    asleep = {**threads(GPU, 0.0), (activity.ACTIVITY, GPU): 0.0}
    for metric in (activity.ACTIVITY, activity.SM_ACTIVE):
        asleep[metric, PEER_LABELS] = 0.8
    asleep[workload.JOB_PROCESS, (*GPU, "7", "root:1", "0", "eve", rank)] = 1
    figures = {**job({}, {}, sent=0.0), **asleep, (workload.RECEIVED, GPU): 2e3}
    served = GpuHistory(nvlink_seen=carried, bursts=True)
    shares = divide_inactive(evidence(figures, history=served, others={PEER: GpuHistory()}))
    seconds = {cause: share.seconds for cause, share in shares.items()}
    assert seconds.get(Cause.PEER, 0.0) == pytest.approx(found)
    assert seconds[Cause.REQUESTS] == pytest.approx(1.0 - found)


@pytest.mark.parametrize("stopped", [GPU, PEER_LABELS])
def test_a_job_with_a_stopped_rank_waits_for_no_request(stopped: tuple[str, ...]) -> None:
    figures = {**job({}, {}, sent=0.0), (workload.RECEIVED, GPU): 2e3, **threads(GPU, 0.0)}
    for gpu in (GPU, PEER_LABELS):
        figures |= {(activity.ACTIVITY, gpu): 0.0, (activity.SM_ACTIVE, gpu): 0.0}
    served, others = GpuHistory(bursts=True), {PEER: GpuHistory()}
    assert serves(evidence(figures, history=served, others=others))
    figures |= {(workload.STOPPED, (*stopped, "11")): 1}
    assert not serves(evidence(figures, history=served, others=others))


STARVE = {name for name in SCENARIOS if name.startswith("starved")}
STARVE |= {"hang", "late-rank", "checkpoint", "threads", "exposed-communication", "throttled"}


@pytest.mark.parametrize(
    ("system", "scenario"),
    covering((name, one) for name, its in ALL.items() for one in possible(its) if one in STARVE),
)
def test_nothing_that_starves_waits_for_requests_even_if_it_works_in_bursts(
    monkeypatch: pytest.MonkeyPatch, system: str, scenario: str
) -> None:
    """All that tells a trainer whose steps are irregular from a server is what it waits for."""
    monkeypatch.setattr(Bursts, "seen", lambda *_: True)
    bench = simulated(f"{system}:{scenario}", gpus=2).run(25)
    found = bench.samples.where(STATE_SECONDS, state="idle", cause="requests")
    assert max(found.values()) < 1.0, found


def test_a_rank_asleep_waits_for_the_rank_that_saves_and_not_for_the_disk() -> None:
    """Both are in the cgroup that stalls."""
    asleep = {**threads(GPU, 0.0), (activity.ACTIVITY, GPU): 0.0, (activity.SM_ACTIVE, GPU): 0.0}
    for metric in (activity.ACTIVITY, activity.SM_ACTIVE):
        asleep[metric, PEER_LABELS] = 0.2
    for doing, time in (("running", 0.2), ("blocked", 0.7)):
        asleep[workload.THREADS, (*PEER_LABELS, "launching", doing)] = time
    figures = {**job({}, {}, sent=0.0), **asleep, (workload.CGROUP_STALLED, (*GPU, "io")): 0.7}
    shares = divide_inactive(evidence(figures, history=GpuHistory(), others={PEER: GpuHistory()}))
    assert shares[Cause.PEER].seconds == pytest.approx(1.0)
    assert Cause.DISK not in {cause for cause, one in shares.items() if one.seconds > 1e-9}


def test_a_server_at_rest_waits_for_requests_and_is_not_held() -> None:
    figures = {**threads(GPU, 0.01), (workload.RECEIVED, GPU): 2e3, (activity.ACTIVITY, GPU): 0.0}
    figures[process.PROCESSES, GPU] = 1.0
    for bursts, pair in ((True, (State.IDLE, Cause.REQUESTS)), (False, (State.HELD, Cause.NONE))):
        parts = divide_second(evidence(figures, history=GpuHistory(300.0, bursts=bursts))).parts
        assert parts == {pair: 1.0}


TRAINERS = {
    "waits a fifth of each step for the network": [0.8 + 0.02 * (n % 3) for n in range(120)],
    "starts, then works evenly": [*([0.0] * 20), 0.1, 0.5, 0.9, *([0.95] * 100)],
    "works evenly, then rests": [*([0.95] * 60), *([0.0] * 60)],
    "works once, as a notebook": [*([0.0] * 20), *([0.9] * 30), *([0.0] * 550)],
    "ends sooner than it is known": [*([0.9] * 25), *([0.0] * 575)],
    "has never worked": [0.0] * 120,
    "a flag is copied now and then": [0.002 * (n % 9 == 0) for n in range(120)],
}


@pytest.mark.parametrize("name", TRAINERS)
def test_an_even_load_is_no_server(name: str) -> None:
    bursts = Bursts()
    for second, active in enumerate(TRAINERS[name]):
        bursts.take(active, float(second), 0.01)
        assert not bursts.seen(float(second))


CHILD = r"^/proc/99999\b"
"""A child that each process has then."""


class HiddenFiles:
    """The files, but those whose path has `hidden`: they raise this error."""

    def __init__(self, files: FileTree, hidden: str, error: int) -> None:
        self._files, self.hidden, self._error = files, hidden, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def _checked(self, path: str) -> str:
        if search(self.hidden, path):
            raise OSError(self._error, strerror(self._error), path)
        return path

    def read(self, path: str) -> str:
        text = self._files.read(self._checked(path))
        return f"{text} 99999" if self.hidden == CHILD and path.endswith("/children") else text

    def reread(self, path: str) -> str:
        return self._files.reread(self._checked(path))

    def names(self, path: str) -> list[str]:
        return self._files.names(self._checked(path))

    def link(self, path: str) -> str:
        return self._files.link(self._checked(path))


SECONDS = 75  # held_after is 60


WAYS = {
    "hidepid=2, or no hostPID": (r"^/proc/\d+\b", ENOENT),
    "hidepid=1": (r"^/proc/\d+/", EACCES),
    "the main thread": (r"^/proc/\d+/(task/\d+/)?(sched)?stat\b", EACCES),
    "a child of another user": (CHILD, ENOENT),
    "a kernel without lists of children": (r"/children$", ENOENT),
}


def bench_of(hidden: str = "^$", error: int = ENOENT) -> AgentBench:
    clock = FrozenClock()
    machine = simulation.SimulatedSystem(first_gpus("dgx-h100:held", 1), clock)
    files = cast(FileTree, HiddenFiles(machine.host.files, hidden, error))
    return watched(machine, clock, host=dataclasses.replace(machine.host, files=files))


def held(bench: AgentBench) -> float:
    spent = bench.run(SECONDS).samples.all(STATE_SECONDS)
    return sum(seconds for labels, seconds in spent.items() if State.HELD in labels)


def test_processes_that_are_seen_to_rest_hold_it() -> None:
    assert held(bench_of()) > 0


@pytest.mark.parametrize("way", WAYS)
def test_hidden_processes_hold_no_gpu(way: str) -> None:
    bench = bench_of(*WAYS[way])
    assert held(bench) == 0
    why = [one.detail for one in bench.absent(workload.THREADS)]
    assert why
    assert "hostPID" in why[0]


def test_memory_in_use_without_a_process_is_no_unused_gpu() -> None:
    """As the driver answers in a container without the host's processes."""
    bench = bench_of()
    bench.machine.nvml.nvmlDeviceGetComputeRunningProcesses = lambda *_: []
    bench.machine.nvml.nvmlDeviceGetGraphicsRunningProcesses = lambda *_: []
    bench.run(5)
    why = [one.detail for one in bench.absent(process.PROCESSES)]
    assert why
    assert "hostPID" in why[0]
