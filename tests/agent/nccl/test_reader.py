"""One connection and one round: what is asked, what comes, and every listener that misbehaves."""

import socket
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from agent.hardware.nccl import NcclAnswer, RasAddress, RasLimits, ask
from agent.model import Absent, Reason
from tests.agent.nccl import listeners
from tests.support.nccl_service import RasListener, SimulatedRanks, asked, reader

LIMITS = RasLimits(reply=60, status=60, most_bytes=1 << 20)
"""Patient with a busy machine: nothing here waits for it to end."""
EIGHT = SimulatedRanks(pids=tuple(range(101, 109)), hosts=("10.0.0.1",) * 8)
FOUR = SimulatedRanks(pids=tuple(range(201, 205)), hosts=("10.0.0.1",) * 4, name="beef")

IMPATIENT = RasLimits(reply=0.05, status=0.1)


def why(ask_it: Callable[[], NcclAnswer]) -> Absent:
    with pytest.raises(Absent) as raised:
        ask_it()
    assert str(raised.value).isprintable()
    return raised.value


@pytest.fixture
def closed_port() -> Iterator[RasAddress]:
    """An address where no one listens: bound, so that no one else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield RasAddress(*taken.getsockname())


@pytest.mark.parametrize("name", listeners.MISBEHAVIOUR)
def test_a_listener_that_misbehaves_is_a_reason(name: str) -> None:
    with listeners.listening(listeners.MISBEHAVIOUR[name]) as address:
        absent = why(lambda: ask(address, LIMITS))
    assert absent.reason is Reason.FAILED
    assert "hunter2" not in str(absent), "what another service says is not repeated"
    assert str(address) in str(absent) or "NCCL's status" in str(absent)


@pytest.mark.parametrize("behaviour", [listeners.says_nothing, listeners.drip])
def test_silence_and_an_answer_without_end_are_broken_off(behaviour: listeners.Behaviour) -> None:
    limits = IMPATIENT if behaviour is listeners.says_nothing else RasLimits(reply=60, status=0.2)
    began = time.monotonic()
    with listeners.listening(behaviour) as address:
        absent = why(lambda: ask(address, limits))
    assert (absent.reason, str(absent)) == (Reason.STALLED, f"{address} does not answer in time")
    assert time.monotonic() - began >= min(limits[:2])


def test_no_one_listens_or_the_address_cannot_be_reached(closed_port: RasAddress) -> None:
    absent = why(lambda: ask(closed_port, LIMITS))
    assert (absent.reason, str(absent)) == (Reason.MISSING, f"no one listens on {closed_port}")
    assert why(lambda: ask(RasAddress("255.255.255.255", 9), LIMITS)).reason is Reason.FAILED


def test_json_is_asked_for_and_nccl_without_it_left_alone() -> None:
    with RasListener(lambda: EIGHT.answer(10)) as listener:
        assert ask(listener.at) == EIGHT.answer(10)
    with RasListener(lambda: EIGHT.answer(10), speaks_json=False) as listener:
        assert "SET FORMAT json" in str(why(lambda: ask(listener.at)))
        assert listener.asked == 0


def test_commands_are_given_one_by_one_in_order() -> None:
    commands: list[str] = []

    def note(connection: socket.socket) -> None:
        for reply in (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n", b'{"communicators": []}'):
            commands.append(listeners.matched(connection))
            connection.sendall(reply)

    with listeners.listening(note) as address:
        assert ask(address, LIMITS) == NcclAnswer()
    assert commands == ["CLIENT PROTOCOL 2", "TIMEOUT 4", "SET FORMAT json", "VERBOSE STATUS"]


@pytest.mark.parametrize(
    ("jobs", "wanted", "connections", "sizes"),
    [
        ((EIGHT, FOUR), (101, 203), 2, [8, 4]),
        ((EIGHT, FOUR), (101,), 1, [8]),
        ((EIGHT, EIGHT, FOUR), (999,), 4, [8, 4]),  # each job once however often it answers
    ],
)
def test_a_round_ends_when_all_wanted_processes_are_named(
    jobs: tuple[SimulatedRanks, ...], wanted: tuple[int, ...], connections: int, sizes: list[int]
) -> None:
    """The kernel picks a process of one of a user's jobs for each connection."""
    turns = cycle(jobs)
    with RasListener(lambda: next(turns).answer(10)) as listener:
        shown = reader(listener.at).read(asked(*wanted))
    assert listener.asked == connections
    assert [len(answer.processes) for answer in shown.answers] == sizes
    assert shown.failure is None


def test_a_process_that_is_silent_ends_the_round() -> None:
    with listeners.listening(listeners.says_nothing) as address:
        shown = reader(address, limits=IMPATIENT).read(asked(101))
    assert shown.failure is not None
    assert (shown.failure.reason, shown.answers) == (Reason.STALLED, ())


def test_every_connection_is_closed() -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for behaviour in (*listeners.MISBEHAVIOUR.values(), listeners.says_nothing):
        with listeners.listening(behaviour) as address:
            reader(address, limits=IMPATIENT).read(asked(101, connections=3))
    assert len(list(descriptors.iterdir())) == before
