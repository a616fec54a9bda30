"""Asking NCCL beside the poller: when, of whom, what is told of it, and that it harms nobody."""

import threading
from collections.abc import Collection

import pytest

from agent.clock import SystemClock
from agent.config.settings import Settings
from agent.hardware.nccl_answer import RasFailure, Unanswered
from agent.hardware.nccl_ras import RasReader, RasRound
from agent.hardware.nccl_text import parse_text
from agent.jobs.nccl_exchange import NcclExchange
from agent.jobs.nccl_jobs import LocalJob
from agent.model import Reason
from agent.polling.reads import ReadCost, ReadOutput
from agent.simulator import build, parse
from agent.simulator.nccl_ras import SimulatedRas, answer_of
from agent.sources import nccl
from agent.sources.workload import JobConfig
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import simulated
from tests.support.nccl_json import JSON
from tests.support.nccl_service import RasListener
from tests.support.nccl_text import status_text

GPUS = {31: ("0", "GPU-a"), 32: ("1", "GPU-b")}
JOB = LocalJob("job", frozenset(GPUS), 2)


class Asked:
    """A reader that notes when it was asked, and fails."""

    def __init__(self, clock: FrozenClock, failure: RasFailure) -> None:
        self.times: list[float] = []
        self._clock = clock
        self._failure = failure

    def read(self, wanted: Collection[int] = ()) -> RasRound:
        assert set(wanted) == set(GPUS)
        self.times.append(self._clock.monotonic())
        return RasRound((), Unanswered(self._failure, "as the test wants it"), 0, 1, 2.0, 0.5)


def watched(failure: RasFailure, *, enabled: bool = True) -> tuple[Asked, NcclExchange, ReadOutput]:
    """Two minutes of a job that may hang in the second, and what is told at their end."""
    clock, exchange = FrozenClock(), NcclExchange(jobs=(JOB,), gpus={"job": GPUS})
    reader, cost = Asked(clock, failure), ReadCost()
    watch = nccl.NcclPoller(reader, clock, lambda: enabled, inline=True, exchange=exchange)
    counts = nccl.NcclCounts(watch, cost)
    for second in range(120):
        exchange.suspected = second >= 60
        out = ReadOutput(clock.monotonic())
        counts.read(out)
        clock.advance(1.0)
    assert cost.wall == 2.0 * len(reader.times)
    return reader, exchange, out


def test_asks_each_30_s_and_each_5_s_while_a_hang_is_suspected() -> None:
    reader, _, out = watched(RasFailure.REFUSED)
    assert [at for at in reader.times if at < 60] == [0, 30]
    assert [at for at in reader.times if at >= 60] == [float(at) for at in range(60, 120, 5)]
    assert {a.reason for a in out.absences} == {Reason.MISSING}
    assert {a.labels for a in out.absences} == set(GPUS.values())


def test_a_setting_switches_it_off() -> None:
    reader, exchange, out = watched(RasFailure.REFUSED, enabled=False)
    assert reader.times == []
    assert (out.samples, out.absences) == ([], [])
    assert exchange.latest.at == 0


@pytest.mark.parametrize("failure", RasFailure)
def test_every_failure_has_a_reason(failure: RasFailure) -> None:
    _, _, out = watched(failure)
    assert len(out.absences) == 2
    assert all(a.detail.startswith(failure.value) for a in out.absences)


def test_the_agent_asks_a_simulated_job() -> None:
    look = simulated("dgx-station-v100:training").run(40).samples
    assert len(look.all(nccl.COLLECTIVES)) == 4
    assert min(look.all(nccl.COLLECTIVES).values()) > 100


def test_the_agent_does_not_where_the_configuration_says_so() -> None:
    bench = simulated("dgx-station-v100:hang", Settings(JobConfig(nccl=False))).run(50)
    assert bench.samples.all(nccl.COLLECTIVES) == {}
    (job,) = bench.agent.jobs.current.running
    assert job.hang is not None
    assert job.hang.culprits == ()


@pytest.mark.parametrize("version", [(2, 28, 9), (2, 27, 5)])
def test_a_simulated_service_says_over_its_socket_what_it_says_without(
    version: tuple[int, int, int],
) -> None:
    """The real client asks a real socket before which the simulated job stands."""
    clock = FrozenClock()
    machine = build(parse("dgx-station-v100:hang"), clock)
    clock.advance(30.0)
    with RasListener(lambda: answer_of(machine.ranks()), version) as listener:
        heard = RasReader((listener.at,)).read({rank.pid for rank in machine.ranks()})
    assert heard.failure is None
    (answer,) = SimulatedRas(machine.ranks).read().answers
    as_text = parse_text(status_text(answer, version))
    assert heard.answers == (answer if version >= JSON else as_text,)


def test_a_listener_that_never_answers_holds_up_nobody() -> None:
    """The thread that asks hangs; what is told and the counts go on."""
    release = threading.Event()

    class Stuck:
        def read(self, wanted: Collection[int] = ()) -> RasRound:
            release.wait()
            return RasRound((), None, 0, 1, 0.0, 0.0)

    clock, exchange = SystemClock(), NcclExchange(jobs=(JOB,), gpus={"job": GPUS})
    watch = nccl.NcclPoller(Stuck(), clock, lambda: True, exchange=exchange)
    watch.start()
    out = ReadOutput(clock.monotonic())
    nccl.NcclCounts(watch, ReadCost()).read(out)
    release.set()
    assert (out.samples, out.absences) == ([], [])
