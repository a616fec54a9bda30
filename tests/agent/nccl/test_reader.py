"""One connection and one round: what is asked, what comes, and every listener that misbehaves."""

import socket
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from agent.hardware.nccl_answer import NcclAnswer, RasFailure, Unanswered, processes
from agent.hardware.nccl_ras import MOST_FAILURES, RasAddress, RasLimits, RasRequest, ask
from agent.model import Reason
from tests.agent.nccl import listeners
from tests.support.nccl_json import Version
from tests.support.nccl_service import RasListener, SimulatedRanks, asked, reader

LIMITS = RasLimits(reply_timeout=60, deadline=60, most_bytes=1 << 20)
"""Patient with a busy machine: nothing here waits for it to end."""
EIGHT = SimulatedRanks(pids=tuple(range(101, 109)), hosts=("10.0.0.1",) * 8)
FOUR = SimulatedRanks(pids=tuple(range(201, 205)), hosts=("10.0.0.1",) * 4, name="beef")

MISBEHAVIOUR = {
    listeners.closes: RasFailure.PROTOCOL,
    listeners.web_server: RasFailure.NOT_NCCL,
    listeners.noise: RasFailure.NOT_NCCL,
    listeners.endless: RasFailure.TOO_LARGE,
    listeners.cut: RasFailure.PROTOCOL,
    listeners.refuses_status: RasFailure.PROTOCOL,
    listeners.strange_reply: RasFailure.PROTOCOL,
}
IMPATIENT = RasLimits(reply_timeout=0.05, deadline=0.1)


@pytest.fixture
def closed_port() -> Iterator[RasAddress]:
    """An address where no one listens: bound, so that no one else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield RasAddress(*taken.getsockname())


@pytest.mark.parametrize("behaviour", MISBEHAVIOUR, ids=lambda b: b.__name__)
def test_a_listener_that_misbehaves_is_a_reason(behaviour: listeners.Behaviour) -> None:
    with listeners.listening(behaviour) as address:
        shown = ask(address, LIMITS)
    assert isinstance(shown, Unanswered)
    assert shown.failure is MISBEHAVIOUR[behaviour]
    assert str(address) in shown.detail or "status of" in shown.detail
    assert shown.detail.isprintable()


def test_silence_is_a_reason() -> None:
    with listeners.listening(listeners.says_nothing) as address:
        shown = ask(address, IMPATIENT)
    detail = f"{address} took the connection and says nothing"
    assert shown == Unanswered(RasFailure.SILENT, detail)


def test_an_answer_that_drips_is_broken_off_at_the_deadline() -> None:
    """The clock stands until the answer has begun, so that a busy machine changes nothing."""
    late: list[float] = []

    def drips(connection: socket.socket) -> None:
        listeners.handshake(connection)
        listeners.drip(connection, lambda: late.append(1.0))

    with listeners.listening(drips) as address:
        shown = ask(address, LIMITS, now=lambda: sum(late))
    detail = f"{address} began to answer and did not end in time"
    assert shown == Unanswered(RasFailure.SLOW, detail)
    assert len(late) >= LIMITS.deadline


def test_nobody_listens(closed_port: RasAddress) -> None:
    shown = ask(closed_port, LIMITS)
    assert shown == Unanswered(RasFailure.REFUSED, f"no one listens on {closed_port}")
    assert shown.absent().reason is Reason.MISSING
    assert str(shown.absent()) == f"refused: no one listens on {closed_port}"


def test_an_address_that_cannot_be_reached() -> None:
    shown = ask(RasAddress("255.255.255.255", 9), LIMITS)
    assert isinstance(shown, Unanswered)
    assert shown.failure is RasFailure.UNREACHABLE


def test_another_services_words_are_not_repeated() -> None:
    def secretive(connection: socket.socket) -> None:
        listeners.matched(connection)
        connection.sendall(b"password: hunter2\n")

    with listeners.listening(secretive) as address:
        shown = ask(address, LIMITS)
    assert isinstance(shown, Unanswered)
    assert "hunter2" not in shown.detail


@pytest.mark.parametrize("version", [(2, 28, 9), (2, 30, 4)])
def test_json_is_asked_for(version: Version) -> None:
    with RasListener(lambda: EIGHT.answer(10), version) as listener:
        shown = ask(listener.at)
    assert isinstance(shown, NcclAnswer)
    assert shown.nccl_version == ".".join(map(str, version))
    assert len(processes(shown)) == 8


def test_nccl_that_speaks_no_json_is_left_alone() -> None:
    with RasListener(lambda: EIGHT.answer(10), (2, 28, 6)) as listener:
        shown = ask(listener.at)
    assert isinstance(shown, Unanswered)
    assert shown.failure is RasFailure.CHANGED
    assert "2.28.7" in shown.detail


def test_commands_are_given_one_by_one_in_order() -> None:
    commands: list[str] = []

    def note(connection: socket.socket) -> None:
        for reply in (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n", b'{"communicators": []}'):
            commands.append(listeners.matched(connection))
            connection.sendall(reply)

    with listeners.listening(note) as address:
        shown = ask(address, LIMITS)
    assert shown == NcclAnswer("")
    assert commands == ["CLIENT PROTOCOL 2", "TIMEOUT 4", "SET FORMAT json", "VERBOSE STATUS"]


def by_turns(*jobs: SimulatedRanks) -> RasListener:
    """A port that several jobs of one user share: the kernel picks one for each connection."""
    turns = cycle(jobs)
    return RasListener(lambda: next(turns).answer(10), (2, 28, 9))


def test_a_round_ends_when_all_wanted_processes_are_told() -> None:
    with by_turns(EIGHT, FOUR) as listener:
        shown = reader(listener.at).read(asked(101, 203))
    assert shown.connections == 2
    assert [len(processes(answer)) for answer in shown.answers] == [8, 4]
    assert shown.failure is None


def test_a_round_without_wishes_asks_once() -> None:
    with by_turns(EIGHT, FOUR) as listener:
        shown = reader(listener.at).read(RasRequest(connections=4))
    assert shown.connections == 1


def test_a_process_that_nccl_never_tells_of_is_given_up() -> None:
    with by_turns(EIGHT) as listener:
        one = reader(listener.at)
        both = asked(101, 999)
        rounds = [one.read(both).connections for _ in range(MOST_FAILURES // 4 + 2)]
        assert rounds == [4] * (MOST_FAILURES // 4) + [1, 1]
        one.read(asked(101))
        assert one.read(both).connections == 4  # gone and come again: another process


def test_each_job_is_told_once_however_often_it_answers() -> None:
    with by_turns(EIGHT, EIGHT, FOUR) as listener:
        shown = reader(listener.at).read(asked(999))
    assert shown.connections == 4
    assert [len(processes(answer)) for answer in shown.answers] == [8, 4]


def test_a_silent_process_is_counted_and_the_next_one_asked() -> None:
    with by_turns(EIGHT) as good:
        turns = iter((listeners.says_nothing,))

        def behaviour(connection: socket.socket) -> None:
            silent = next(turns, None)
            if silent is not None:
                silent(connection)
                return
            with socket.create_connection(good.at) as other:  # hands the conversation on
                while words := listeners.matched(connection):
                    other.sendall(f"{words}\n".encode())
                    last = words == "VERBOSE STATUS"
                    while piece := other.recv(65536):
                        connection.sendall(piece)
                        if not last:
                            break
                    if last:
                        return

        with listeners.listening(behaviour) as address:
            shown = reader(address, limits=RasLimits(reply_timeout=2.0)).read(asked(101))
    assert shown.connections == 2
    assert shown.failure is None
    assert len(shown.answers) == 1


def test_nobody_but_silent_processes() -> None:
    with listeners.listening(listeners.says_nothing) as address:
        shown = reader(address, limits=IMPATIENT).read(asked(101, connections=3))
    assert shown.failure is not None
    assert shown.failure.failure is RasFailure.SILENT
    assert (shown.connections, shown.answers) == (3, ())


def test_every_connection_is_closed() -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for behaviour in (*MISBEHAVIOUR, listeners.says_nothing, listeners.handshake):
        with listeners.listening(behaviour) as address:
            reader(address, limits=IMPATIENT).read(asked(101, connections=3))
    assert len(list(descriptors.iterdir())) == before
