"""NCCL's RAS service on this host: the status of its jobs, asked without delaying them.

RAS ("reliability, availability, serviceability") is a thread in every process that uses NCCL 2.24
or later. It listens on localhost:28028, by default, and answers any local user. All processes of
one user share the port, and the kernel picks one of them for each connection: which of a user's
jobs answers is chance. Of several users only the first has the port. Asking has ended jobs
(agent.hardware.nccl_guard), so nothing is asked that the guard does not admit.

A count is of collectives that the process launched: not yet of finished ones, without sends and
receives, and without those that a CUDA graph replays. A job made of such graphs therefore stands
still in its counts while it works.
"""

import re
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from agent.hardware.files import RealFiles
from agent.hardware.nccl_guard import RasGuard
from agent.model import Absent, Reason


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a communicator. `host` is the address that NCCL started from, empty where it is
    not shown; `pid` is the process number as the process sees it itself. `counts` holds launched
    collectives by kind (AllReduce)."""

    rank: int
    host: str
    pid: int
    nvml_device: int
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def location(self) -> "RankLocation":
        return RankLocation(self.host, self.pid, self.nvml_device)


class RankLocation(NamedTuple):
    """Location of a rank, the same in all communicators."""

    host: str
    pid: int
    nvml_device: int


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator: `ranks` those that answered, `silent` those whose process did not answer in
    time (stopped, stuck or gone), both sorted. `key` is NCCL's two hashes of it."""

    key: str
    ranks: tuple[Rank, ...] = ()
    silent: tuple[Rank, ...] = ()


@dataclass(frozen=True, slots=True)
class NcclAnswer:
    """One job, as one of its processes reported it: every rank of every communicator."""

    communicators: tuple[Communicator, ...] = ()

    @property
    def processes(self) -> frozenset[tuple[str, int]]:
        named = (rank for c in self.communicators for rank in (*c.ranks, *c.silent))
        return frozenset((rank.host, rank.pid) for rank in named)

    def same_job(self, other: "NcclAnswer") -> bool:
        keys = {communicator.key for communicator in self.communicators}
        shared = any(communicator.key in keys for communicator in other.communicators)
        return shared or not self.processes.isdisjoint(other.processes)


# JSON, as NCCL writes it since 2.28.7. Ranks that left, or have no process, are passed over.

Count = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[int, Meta(ge=-1, le=2**62)]
Name = Annotated[str, Meta(max_length=64)]
Kind = Annotated[str, Meta(pattern="^[A-Za-z][A-Za-z0-9_]{0,63}$")]
HOST = re.compile(r"[A-Za-z0-9.:_%-]+")


class _State(Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(Struct):
    rank: Count
    host: Name
    pid: Number
    nvml_dev: Number
    status: _State
    collective_counts: Annotated[dict[Kind, Count], Meta(max_length=32)] = {}

    def read(self) -> Rank:
        known = HOST.fullmatch(self.host) and self.host != "unknown"
        host = self.host if known else ""
        return Rank(self.rank, host, self.pid, self.nvml_dev, self.collective_counts)


class _Communicator(Struct):
    hash: Name
    size: Count
    ranks: list[_Rank]
    missing_ranks: list[_Rank]
    secondary_hash: Name = ""

    def read(self) -> Communicator:
        lost = (r for r in self.missing_ranks if r.status.unresponsive or r.status.considered_dead)
        ranks, silent = (
            tuple(one.read() for one in sorted(some, key=lambda r: r.rank) if one.pid >= 0)
            for some in (self.ranks, lost)
        )
        return Communicator(f"{self.hash} {self.secondary_hash}", ranks, silent)


class _Status(Struct):
    communicators: list[_Communicator]


def parsed(text: bytes) -> NcclAnswer:
    """A whole status in JSON; raises Absent(failed) where it is none."""
    try:
        status = msgspec.json.decode(text, type=_Status)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = f"NCCL's status of {len(text)} bytes cannot be read: {str(error)!r:.99}"
        raise Absent(Reason.FAILED, why) from error
    return NcclAnswer(tuple(one.read() for one in status.communicators))


# The service


class RasAddress(NamedTuple):
    """Address of a RAS service."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


LOCALHOST = (RasAddress("127.0.0.1", 28028), RasAddress("::1", 28028))
"""NCCL listens on the first address that "localhost" resolves to, which may be either."""


class RasLimits(NamedTuple):
    """Limits for asking. `reply` is how long (s) a listener may take for each short reply: one that
    is stopped still has connections accepted for it by the kernel. `status` (s) is for the answer,
    with room for WAIT and the 5 s that NCCL adds where one of its processes is stuck."""

    reply: float = 1.0
    status: float = 10.0
    most_bytes: int = 8 << 20


LIMITS = RasLimits()
WAIT = 4
"""Seconds that NCCL waits for its other processes. At 0 it never gives the memory of a question
back."""

LONGEST_REPLY, CHUNK = 256, 1 << 16
DIALOGUE = (
    ("CLIENT PROTOCOL 2", re.compile(rb"SERVER PROTOCOL \d{1,9}\r?\n")),
    (f"TIMEOUT {WAIT}", re.compile(rb"OK\r?\n")),
    ("SET FORMAT json", re.compile(rb"OK\r?\n")),  # refused before 2.28.7
)


def ask(address: RasAddress, limits: RasLimits = LIMITS) -> NcclAnswer:
    """One connection, one job's status. Raises Absent: not_present where no one listens, stalled
    where no answer comes in time, failed for any other answer than NCCL's. What another service
    says is not repeated."""
    try:
        with socket.create_connection(address, timeout=limits.reply) as connection:
            for words, expected in DIALOGUE:
                connection.sendall(f"{words}\n".encode())
                end = time.monotonic() + limits.reply
                if not expected.fullmatch(_received(connection, LONGEST_REPLY, end, line=True)):
                    raise Absent(Reason.FAILED, f"{address} does not answer {words!r} as NCCL does")
            connection.sendall(b"VERBOSE STATUS\n")
            end = time.monotonic() + limits.status
            answer = _received(connection, limits.most_bytes + 1, end)
    except ConnectionRefusedError as error:
        raise Absent(Reason.MISSING, f"no one listens on {address}") from error
    except TimeoutError as error:
        raise Absent(Reason.STALLED, f"{address} does not answer in time") from error
    except OSError as error:
        raise Absent(Reason.FAILED, f"{address}: {error.strerror or error}") from error
    if len(answer) > limits.most_bytes:
        raise Absent(Reason.FAILED, f"{address} sent more than {limits.most_bytes} bytes")
    return parsed(answer)


def _received(connection: socket.socket, most: int, end: float, *, line: bool = False) -> bytes:
    """All that comes, or its first line, at most so many bytes; raises TimeoutError at `end`."""
    pieces: list[bytes] = []
    size = 0
    while size < most:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        piece = connection.recv(min(CHUNK, most - size))
        pieces.append(piece)
        size += len(piece)
        if not piece or (line and piece.endswith(b"\n")):
            break
    return b"".join(pieces)


class RasRequest(NamedTuple):
    """Request to RAS: `processes` are all those on GPUs, each with its pid in its own namespace,
    `wanted` those of the jobs in question; `unknown` permits versions that cannot be read,
    `connections` limits the connections of a round."""

    processes: Mapping[int, int]
    wanted: Collection[int]
    unknown: bool = False
    connections: int = 1


@dataclass(frozen=True, slots=True)
class RasRound:
    """Result of one round: an answer for each job that had its turn, and why there is no further
    one. `seconds` and `cpu` are what it took on the clock and of this thread's processor time;
    `believed` are the local processes that the answers may name."""

    answers: tuple[NcclAnswer, ...] = ()
    failure: Absent | None = None
    seconds: float = 0.0
    cpu: float = 0.0
    believed: frozenset[int] = frozenset()


class RanksReader:
    """A reader of NCCL's ranks; this one stands where NCCL cannot be asked, as for a tape."""

    def read(self, request: RasRequest) -> RasRound:  # noqa: ARG002
        """Ask until all wanted processes are named; may block for seconds, and never raises."""
        return RasRound(failure=Absent(Reason.MISSING, "no NCCL service is recorded here"))


class RasReader(RanksReader):
    """Asks round by round, one connection at a time; for one thread, which it blocks. `addresses`
    are tried in order: the first where anybody listens is asked."""

    def __init__(
        self,
        addresses: tuple[RasAddress, ...] = LOCALHOST,
        limits: RasLimits = LIMITS,
        guard: RasGuard | None = None,
    ) -> None:
        self._addresses = addresses
        self._limits = limits
        self._guard = guard or RasGuard(RealFiles("/"))

    def read(self, request: RasRequest) -> RasRound:
        """Ask until all wanted processes are named, one does not answer, or the round's connections
        are used up."""
        wall, cpu = time.perf_counter(), time.thread_time()
        answers: list[NcclAnswer] = []
        believed, failure = frozenset[int](), None
        try:
            address, believed = self._admitted(request)
            missing = {request.processes[pid] for pid in request.wanted if pid in believed}
            for _ in range(request.connections):
                answer = ask(address, self._limits)
                if not any(answer.same_job(other) for other in answers):
                    answers.append(answer)
                missing -= {pid for _, pid in answer.processes}
                if not missing:
                    break
        except Absent as absent:
            failure = absent.without_traceback()
        took = time.perf_counter() - wall, time.thread_time() - cpu
        return RasRound(tuple(answers), failure, *took, believed)

    def _admitted(self, request: RasRequest) -> tuple[RasAddress, frozenset[int]]:
        """The address that may be asked, and the processes that it may name; raises Absent."""
        refusals: list[Absent] = []
        for address in self._addresses:
            try:
                found = self._guard.admitted(*address, request.processes, unknown=request.unknown)
            except Absent as absent:
                refusals.append(absent)
                continue
            if not found.isdisjoint(request.wanted):
                return address, found
            why = f"the listener on {address} belongs to the job of another user"
            refusals.append(Absent(Reason.DENIED, why))
        raise next((one for one in refusals if one.reason is not Reason.MISSING), refusals[0])
