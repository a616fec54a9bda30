"""A client of NCCL's RAS service on this host: status of its jobs, without delaying them.

Every process that uses NCCL listens on localhost:28028, by default, and answers any local user.
All processes of one user share the port, and the kernel picks one of them for each connection:
which of a user's jobs answers is chance. Of several users only the first has the port. Asking has
ended jobs (agent.hardware.nccl_guard), so nothing is asked that the guard does not admit.
"""

import re
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

from agent.hardware.files import RealFiles
from agent.hardware.nccl_answer import NcclAnswer, RasFailure, Unanswered, processes, same_job
from agent.hardware.nccl_guard import RasGuard
from agent.hardware.nccl_json import parse_json


class RasAddress(NamedTuple):
    """Where RAS listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


LOCALHOST = (RasAddress("127.0.0.1", 28028), RasAddress("::1", 28028))
"""NCCL listens on the first address that "localhost" resolves to, which may be either."""


@dataclass(frozen=True, slots=True)
class RasLimits:
    """What asking may cost.

    `reply_timeout` is how long (s) a listener may take for each short reply: one that is stopped
    still has connections accepted for it by the kernel. `wait` is how long (s) NCCL waits for
    its other processes; it adds up to 5 s of its own where one of them is stuck, and never gives
    the memory of a question back where this is 0. `deadline` (s) is for one connection, and has
    room for both.
    """

    reply_timeout: float = 1.0
    wait: int = 4
    deadline: float = 10.0
    most_bytes: int = 8 << 20


LIMITS = RasLimits()
Now = Callable[[], float]
LATE = {
    RasFailure.SILENT: "took the connection and says nothing",
    RasFailure.SLOW: "began to answer and did not end in time",
}
LONGEST_REPLY = 256
CHUNK = 1 << 16
HANDSHAKE = re.compile(rb"SERVER PROTOCOL \d{1,9}\r?\n")


class _Failed(Exception):
    """The conversation is over; carries why."""

    def __init__(self, failure: RasFailure, detail: str) -> None:
        super().__init__(detail)
        self.unanswered = Unanswered(failure, detail)


class _Conversation:
    """One connection, from handshake to end; every wait ends at the deadline at the latest."""

    def __init__(self, address: RasAddress, limits: RasLimits, now: Now) -> None:
        self._address = address
        self._limits = limits
        self._now = now
        self._end = now() + limits.deadline
        timeout = min(limits.reply_timeout, limits.deadline)
        try:
            self._socket = socket.create_connection(address, timeout=timeout)
        except ConnectionRefusedError as error:
            raise _Failed(RasFailure.REFUSED, f"no one listens on {address}") from error
        except TimeoutError as error:
            raise _Failed(RasFailure.SILENT, f"{address} did not accept a connection") from error
        except OSError as error:
            detail = f"{address} cannot be reached: {error.strerror or error}"
            raise _Failed(RasFailure.UNREACHABLE, detail) from error

    def __enter__(self) -> "_Conversation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def handshake(self) -> None:
        reply = self._reply("CLIENT PROTOCOL 2")
        if not HANDSHAKE.fullmatch(reply):
            detail = f"the service on {self._address} does not speak NCCL's RAS protocol"
            raise _Failed(RasFailure.NOT_NCCL, detail)

    def command(self, words: str) -> bool:
        """Give a command that is answered with OK, or with an error: whether it was OK."""
        reply = self._reply(words).strip()
        if reply != b"OK" and not reply.startswith(b"ERROR"):
            detail = f"NCCL on {self._address} gave no known reply to {words!r}"
            raise _Failed(RasFailure.PROTOCOL, detail)
        return reply == b"OK"

    def status(self) -> str:
        """Ask for everything and read to the end."""
        self._send("VERBOSE STATUS")
        pieces: list[bytes] = []
        size = 0
        while piece := self._receive(CHUNK, self._end, RasFailure.SLOW):
            pieces.append(piece)
            size += len(piece)
            if size > self._limits.most_bytes:
                detail = f"{self._address} sent more than {self._limits.most_bytes} bytes"
                raise _Failed(RasFailure.TOO_LARGE, detail)
        return b"".join(pieces).decode("utf-8", errors="replace")

    def _reply(self, words: str) -> bytes:
        """One short line in answer to `words`."""
        self._send(words)
        end = min(self._end, self._now() + self._limits.reply_timeout)
        reply = b""
        while not reply.endswith(b"\n") and len(reply) < LONGEST_REPLY:
            piece = self._receive(LONGEST_REPLY - len(reply), end, RasFailure.SILENT)
            if not piece:
                detail = f"{self._address} closed the connection after {words!r}"
                raise _Failed(RasFailure.PROTOCOL, detail)
            reply += piece
        return reply

    def _send(self, words: str) -> None:
        try:
            self._socket.settimeout(max(self._end - self._now(), 0.001))
            self._socket.sendall(f"{words}\n".encode("ascii"))
        except TimeoutError as error:
            raise _Failed(RasFailure.SLOW, f"{self._address} takes nothing in") from error
        except OSError as error:
            detail = f"{self._address} broke the connection off before {words!r}"
            raise _Failed(RasFailure.PROTOCOL, detail) from error

    def _receive(self, size: int, end: float, late: RasFailure) -> bytes:
        """What has come, at most `size` bytes; `late` is the failure when `end` passes."""
        left = end - self._now()
        if left <= 0:
            raise _Failed(late, f"{self._address} {LATE[late]}")
        try:
            self._socket.settimeout(left)
            return self._socket.recv(size)
        except TimeoutError as error:
            raise _Failed(late, f"{self._address} {LATE[late]}") from error
        except OSError as error:
            detail = f"{self._address} broke the connection off"
            raise _Failed(RasFailure.PROTOCOL, detail) from error


def ask(
    address: RasAddress, limits: RasLimits = LIMITS, *, now: Now = time.monotonic
) -> NcclAnswer | Unanswered:
    """One connection, one job's status; blocks for `limits.deadline` at most and never raises.

    `now` gives real seconds, whatever the agent's own clock does: the times that NCCL allows are
    real.
    """
    try:
        with _Conversation(address, limits, now) as nccl:
            nccl.handshake()
            if not nccl.command(f"TIMEOUT {limits.wait}"):
                detail = f"NCCL on {address} does not take a timeout of {limits.wait} s"
                return Unanswered(RasFailure.PROTOCOL, detail)
            if not nccl.command("SET FORMAT json"):
                detail = f"NCCL on {address} does not speak JSON: it is older than 2.28.7"
                return Unanswered(RasFailure.CHANGED, detail)
            return parse_json(nccl.status())
    except _Failed as failed:
        return failed.unanswered


class RasRequest(NamedTuple):
    """What is asked for: `processes` are all those on GPUs, each with the number by which it knows
    itself, `wanted` those of the jobs in question; `unknown` permits versions that cannot be
    read, `connections` is how often a round may connect."""

    processes: Mapping[int, int] = {}
    wanted: Collection[int] = ()
    unknown: bool = False
    connections: int = 1


@dataclass(frozen=True, slots=True)
class RasRound:
    """What one round brought: an answer for each job that had its turn.

    `failure` is that of the last connection; `seconds` and `cpu` are what the round took on the
    clock and of this thread's processor time; `believed` are the local processes that the
    answers may name.
    """

    answers: tuple[NcclAnswer, ...]
    failure: Unanswered | None
    connections: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    believed: frozenset[int] = frozenset()


NO_LISTENER = {RasFailure.REFUSED, RasFailure.UNREACHABLE}
MOST_FAILURES = 20
"""Connections after which a process that never answered is not looked for any longer."""


class RanksReader(Protocol):
    """A reader of NCCL's ranks: of the service itself, a simulated one, none."""

    def read(self, request: RasRequest) -> RasRound:
        """Ask until all wanted processes are named; may block for seconds, and never raises."""


class NoRanks:
    """Where no NCCL can be asked: a tape, a test."""

    def read(self, request: RasRequest) -> RasRound:  # noqa: ARG002
        """No answer."""
        return RasRound((), Unanswered(RasFailure.REFUSED, "no NCCL service is recorded here"))


class RasReader:
    """Asks round by round, one connection at a time; for one thread, which it blocks.

    `addresses` are tried in order, at least one: the first where anybody listens is asked.
    """

    def __init__(
        self,
        addresses: tuple[RasAddress, ...] = LOCALHOST,
        limits: RasLimits = LIMITS,
        guard: RasGuard | None = None,
    ) -> None:
        self._addresses = addresses
        self._limits = limits
        self._guard = guard or RasGuard(RealFiles("/"))
        self._failed_reads: dict[int, int] = {}  # connections that did not name a process

    def read(self, request: RasRequest) -> RasRound:
        """Ask until all wanted processes are named, or the round's connections are used up."""
        wall, cpu = time.perf_counter(), time.thread_time()
        answers: list[NcclAnswer] = []
        failures: list[Unanswered | None] = []
        address, believed, failure = self._admitted(request)
        if address is not None:
            wanted = {request.processes[pid] for pid in request.wanted if pid in believed}
            if wanted or not request.wanted:
                self._ask(address, wanted, request.connections, answers, failures)
                failure = failures[-1] if failures else None
            else:
                detail = f"the listener on {address} belongs to the job of another user"
                failure = Unanswered(RasFailure.FOREIGN, detail)
        return RasRound(
            answers=tuple(answers),
            failure=failure,
            connections=len(failures),
            seconds=time.perf_counter() - wall,
            cpu=time.thread_time() - cpu,
            believed=believed,
        )

    def _admitted(
        self, request: RasRequest
    ) -> tuple[RasAddress | None, frozenset[int], Unanswered | None]:
        """The address that may be asked, with the processes that it may name; else why none."""
        refusals: list[Unanswered] = []
        for address in self._addresses:
            found = self._guard.admitted(*address, request.processes, unknown=request.unknown)
            if not isinstance(found, Unanswered):
                return address, found, None
            refusals.append(found)
        worst = [one for one in refusals if one.failure not in NO_LISTENER]
        return None, frozenset(), (worst or refusals)[0]

    def _ask(
        self,
        address: RasAddress,
        wanted: Collection[int],
        connections: int,
        answers: list[NcclAnswer],
        failures: list[Unanswered | None],
    ) -> None:
        """Connect until all wanted processes are named but those that never were."""
        self._failed_reads = {pid: n for pid, n in self._failed_reads.items() if pid in wanted}
        missing = {pid for pid in wanted if self._failed_reads.get(pid, 0) < MOST_FAILURES}
        while len(failures) < connections:
            reply = ask(address, self._limits)
            if isinstance(reply, Unanswered):
                failures.append(reply)
                if reply.failure is not RasFailure.SILENT:
                    return  # else the next connection may find a process that answers
                continue
            failures.append(None)
            if not any(same_job(reply, answer) for answer in answers):
                answers.append(reply)
            named = {process.pid for process in processes(reply)}
            missing -= named
            for pid in missing:
                self._failed_reads[pid] = self._failed_reads.get(pid, 0) + 1
            for pid in named & self._failed_reads.keys():
                del self._failed_reads[pid]
            if not missing:
                return
