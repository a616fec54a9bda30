"""NCCL beside the poller: when it is asked, of which jobs, and that it harms none."""

import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.hardware.nccl import NcclAnswer, RanksReader, RasRequest, RasRound
from agent.jobs.nccl_jobs import LocalJob, NcclExchange, NcclMode
from agent.model import Absent, Reason
from agent.polling.reads import ReadOutput
from agent.simulator import build, parse
from agent.simulator.host import SimulatedServices
from agent.sources import nccl
from agent.sources.workload import JobConfig
from tests.agent.nccl import listeners
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import AgentBench, simulated
from tests.support.nccl_service import RasListener, asked, reader

GPUS = {31: ("0", "GPU-a"), 32: ("1", "GPU-b")}
JOB = LocalJob("job", {31: 1, 32: 2}, 2)


class Asked(RanksReader):
    """A reader that notes when it was asked, and fails."""

    def __init__(self, clock: FrozenClock, failure: Reason) -> None:
        self.times: list[float] = []
        self._clock = clock
        self._failure = failure

    def read(self, request: RasRequest) -> RasRound:
        assert set(request.wanted) == set(GPUS)
        self.times.append(self._clock.monotonic())
        return RasRound((), Absent(self._failure, "as the test wants it"), 2.0, 0.5)


def watched(mode: NcclMode = NcclMode.ALWAYS) -> tuple[Asked, NcclExchange, ReadOutput]:
    """Two minutes of a job that may hang in the second, and what is reported at their end."""
    clock = FrozenClock()
    asker = Asked(clock, Reason.MISSING)
    watch = nccl.NcclPoller(asker, clock, lambda: mode, inline=True)
    watch.exchange.gpus = GPUS
    for second in range(120):
        watch.exchange.jobs = (replace(JOB, suspected=second >= 60),)
        out = ReadOutput(clock.monotonic())
        watch.read(out)
        clock.advance(1.0)
    cost = watch.costs.by_source.get("nccl", (0.0, 0.0))
    assert cost == (2.0 * len(asker.times), 0.5 * len(asker.times))
    return asker, watch.exchange, out


def test_always_asks_each_30_s_and_each_5_s_while_a_hang_is_suspected() -> None:
    asker, _, out = watched()
    assert [at for at in asker.times if at < 60] == [0, 30]
    assert [at for at in asker.times if at >= 60] == [float(at) for at in range(60, 120, 5)]
    assert {a.reason for a in out.absences} == {Reason.MISSING}
    assert {a.labels for a in out.absences} == set(GPUS.values())


@pytest.mark.parametrize("mode", [NcclMode.OFF, NcclMode.HANG])
def test_nothing_is_asked_when_off_or_before_a_hang_is_sure(mode: NcclMode) -> None:
    asker, exchange, out = watched(mode=mode)
    assert asker.times == []
    assert (out.samples, out.absences) == ([], [])
    assert exchange.latest.at == 0


def with_listener(scenario: str, mode: NcclMode) -> tuple[AgentBench, list[float], RasListener]:
    """A simulated machine whose agent asks a real socket; when each connection came."""
    bench = simulated(f"dgx-a100:{scenario}", Settings(JobConfig(nccl=mode.value)), gpus=2)
    times: list[float] = []

    def answer() -> object:
        times.append(bench.clock.monotonic())
        job = bench.machine.communicator()
        assert job is not None
        return NcclAnswer((job,))

    listener = RasListener(answer)  # type: ignore[arg-type]
    bench.agent.nccl.reader = reader(listener.at)
    return bench, times, listener


def aged(bench: AgentBench, seconds: float) -> AgentBench:
    """The job has run for so long when the agent meets it."""
    bench.run(2)
    for record in bench.agent.jobs._records:
        record._older = seconds
    return bench


@pytest.mark.parametrize(
    ("scenario", "mode", "age", "expected"),
    [
        ("hang", NcclMode.OFF, 600.0, 0),
        ("hang", NcclMode.HANG, 0.0, 0),  # in its first five minutes
        ("training", NcclMode.HANG, 600.0, 0),  # it works
        ("checkpoint", NcclMode.HANG, 600.0, 0),
        ("hang", NcclMode.HANG, 600.0, 3),  # 25 s after the start, then every 30 s
        ("training", NcclMode.ALWAYS, 0.0, 4),
    ],
)
def test_connections_in_100_s(scenario: str, mode: NcclMode, age: float, expected: int) -> None:
    bench, times, listener = with_listener(scenario, mode)
    with listener:
        aged(bench, age).run(98)
    assert len(times) == expected
    assert all(later - earlier >= 30 for earlier, later in pairwise(times))
    if expected and mode is NcclMode.HANG:
        assert times[0] >= 20, "only once it hangs by everything else"


def test_a_hang_that_nccl_is_asked_about_has_its_counts() -> None:
    bench, _, listener = with_listener("hang", NcclMode.HANG)
    with listener:
        (job,) = aged(bench, 600.0).run(70).agent.jobs.current.running
    assert job.hang is not None
    assert job.hang.confirmed
    assert job.hang.others_launched == (job.hang.launched or 0) + 1


def test_the_agent_asks_a_simulated_job() -> None:
    settings = Settings(JobConfig(nccl="always"))
    look = simulated("dgx-station-v100:training", settings).run(40).samples
    assert len(look.all(nccl.COLLECTIVES)) == 4
    assert min(look.all(nccl.COLLECTIVES).values()) > 100


def test_the_agent_does_not_unless_the_configuration_says_so() -> None:
    bench = simulated("dgx-station-v100:hang").run(50)
    assert bench.samples.all(nccl.COLLECTIVES) == {}
    (job,) = bench.agent.jobs.current.running
    assert job.hang is not None
    assert not job.hang.confirmed
    assert [one.rank for one in job.hang.culprits] == [1]


def test_a_simulated_service_says_over_its_socket_what_it_says_without() -> None:
    """The real client asks a real socket before which the simulated job stands."""
    clock = FrozenClock()
    machine = build(parse("dgx-station-v100:hang"), clock)
    clock.advance(30.0)
    job = machine.communicator()
    assert job is not None
    pids = [rank.pid for rank in job.ranks]
    with RasListener(lambda: NcclAnswer((job,))) as listener:
        heard = reader(listener.at).read(asked(*pids))
    assert heard.failure is None
    assert heard.answers == SimulatedServices(machine).read(asked(*pids)).answers


@pytest.mark.parametrize("name", ["closes", "noise", "endless"])
def test_garbage_costs_nothing(name: str) -> None:
    """The hang is found as without NCCL, and at the same moment."""
    expected = first_hang(simulated("dgx-station-v100:hang"))
    with listeners.listening(listeners.MISBEHAVIOUR[name]) as address:
        bench = simulated("dgx-station-v100:hang", Settings(JobConfig(nccl="always")))
        bench.agent.nccl.reader = reader(address)
        assert first_hang(bench) == expected
    assert bench.samples.all(nccl.COLLECTIVES) == {}


def first_hang(bench: AgentBench) -> tuple[float, object]:
    """Return the time when a hang is first found, and the process that is named."""
    while bench.clock.monotonic() < 60:
        (job,) = bench.run(1).agent.jobs.current.running or (None,)
        if job is not None and job.hang:
            return bench.clock.monotonic(), job.hang.culprits
    raise AssertionError("no hang")


def test_a_listener_that_never_answers_holds_up_none() -> None:
    """The thread that asks hangs; what is known and the counts go on."""
    release = threading.Event()

    class Stuck(RanksReader):
        def read(self, request: RasRequest) -> RasRound:
            release.wait()
            return RasRound()

    watch = nccl.NcclPoller(Stuck(), SystemClock(), lambda: NcclMode.ALWAYS)
    watch.exchange.jobs, watch.exchange.gpus = (JOB,), GPUS
    watch.start()
    out = ReadOutput(0.0)
    watch.read(out)
    release.set()
    assert (out.samples, out.absences) == ([], [])
