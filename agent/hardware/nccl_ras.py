"""A client of NCCL's RAS service on this host: status of its jobs, without delaying them.

Every process that uses NCCL listens on localhost:28028, by default, and answers any local user in
lines of text. All processes of one user share the port, and the kernel picks one of them for each
connection: which of a user's jobs answers is chance. Of several users only the first has the port.
"""

import re
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

from agent.hardware.nccl_answer import NcclAnswer, RasFailure, Unanswered, processes, same_job
from agent.hardware.nccl_json import parse_json
from agent.hardware.nccl_text import parse_text


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
    room for both. `connections` is for one round over all jobs.
    """

    reply_timeout: float = 1.0
    wait: int = 4
    deadline: float = 10.0
    most_bytes: int = 8 << 20
    connections: int = 4


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
            raise _Failed(RasFailure.REFUSED, f"nobody listens on {address}") from error
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
    address: RasAddress,
    limits: RasLimits = LIMITS,
    *,
    plain: bool = False,
    now: Now = time.monotonic,
) -> NcclAnswer | Unanswered:
    """One connection, one job's status; blocks for `limits.deadline` at most and never raises.

    JSON where NCCL speaks it (2.28.7 and later) unless `plain`, else text. `now` tells real
    seconds, whatever the agent's own clock does: the times that NCCL allows are real.
    """
    try:
        with _Conversation(address, limits, now) as nccl:
            nccl.handshake()
            if not nccl.command(f"TIMEOUT {limits.wait}"):
                detail = f"NCCL on {address} does not take a timeout of {limits.wait} s"
                return Unanswered(RasFailure.PROTOCOL, detail)
            parse = parse_json if not plain and nccl.command("SET FORMAT json") else parse_text
            return parse(nccl.status())
    except _Failed as failed:
        return failed.unanswered


@dataclass(frozen=True, slots=True)
class RasRound:
    """What one round told: an answer for each job that had its turn.

    `failure` is that of the last connection; `silent` counts listeners that said nothing;
    `seconds` and `cpu` are what the round took on the clock and of this thread's processor time.
    """

    answers: tuple[NcclAnswer, ...]
    failure: Unanswered | None
    silent: int
    connections: int
    seconds: float
    cpu: float


PLAIN_ROUNDS = 10
"""So many rounds are asked in text after JSON was too large: text grows with trouble alone."""
NO_LISTENER = {RasFailure.REFUSED, RasFailure.UNREACHABLE}
MOST_FAILURES = 20
"""Connections after which a process that was never told is not looked for any longer."""


class RanksReader(Protocol):
    """Whoever tells of NCCL's ranks: the service itself, a simulated one, nobody."""

    def read(self, wanted: Collection[int] = ()) -> RasRound:
        """Ask until all `wanted` processes are told; may block for seconds, and never raises."""


class NoRanks:
    """Where no NCCL can be asked: a tape, a test."""

    def read(self, wanted: Collection[int] = ()) -> RasRound:  # noqa: ARG002
        """Nobody answers."""
        nobody = Unanswered(RasFailure.REFUSED, "no NCCL service is recorded here")
        return RasRound((), nobody, 0, 0, 0.0, 0.0)


class RasReader:
    """Asks round by round, one connection at a time; for one thread, which it blocks.

    `addresses` are tried in order, at least one: the first where anybody listens is asked.
    """

    def __init__(
        self, addresses: tuple[RasAddress, ...] = LOCALHOST, limits: RasLimits = LIMITS
    ) -> None:
        self._addresses = addresses
        self._limits = limits
        self._plain_rounds = 0
        self._failed_reads: dict[int, int] = {}  # connections that did not tell of a process

    def read(self, wanted: Collection[int] = ()) -> RasRound:
        """Ask until all `wanted` processes are told, or the round's connections are used up."""
        wall, cpu = time.perf_counter(), time.thread_time()
        missing = self._sought(wanted)
        answers: list[NcclAnswer] = []
        failures: list[Unanswered | None] = []
        while len(failures) < self._limits.connections:
            reply = self._ask()
            if isinstance(reply, Unanswered):
                failures.append(reply)
                if reply.failure is not RasFailure.SILENT:
                    break  # else the next connection may find a process that answers
            else:
                failures.append(None)
                if not any(same_job(reply, answer) for answer in answers):
                    answers.append(reply)
                missing -= self._mark_answered(reply, missing)
                if not missing or not reply.lists_all:
                    break
        self._choose_form(failures[-1])
        return RasRound(
            answers=tuple(answers),
            failure=failures[-1],
            silent=sum(f is not None and f.failure is RasFailure.SILENT for f in failures),
            connections=len(failures),
            seconds=time.perf_counter() - wall,
            cpu=time.thread_time() - cpu,
        )

    def _sought(self, wanted: Collection[int]) -> set[int]:
        """The wanted processes but those that NCCL has not told of for long."""
        self._failed_reads = {pid: n for pid, n in self._failed_reads.items() if pid in wanted}
        return {pid for pid in wanted if self._failed_reads.get(pid, 0) < MOST_FAILURES}

    def _mark_answered(self, answer: NcclAnswer, missing: set[int]) -> set[int]:
        """The processes that an answer names; each other one has waited in vain once more."""
        answered = {process.pid for process in processes(answer)}
        for pid in missing - answered:
            self._failed_reads[pid] = self._failed_reads.get(pid, 0) + 1
        for pid in answered & self._failed_reads.keys():
            del self._failed_reads[pid]
        return answered

    def _choose_form(self, failure: Unanswered | None) -> None:
        self._plain_rounds = max(self._plain_rounds - 1, 0)
        if failure is not None and failure.failure is RasFailure.TOO_LARGE:
            self._plain_rounds = PLAIN_ROUNDS

    def _ask(self) -> NcclAnswer | Unanswered:
        """Ask at the first address where anybody listens."""
        deserted: list[Unanswered] = []
        for address in self._addresses:
            reply = ask(address, self._limits, plain=self._plain_rounds > 0)
            if not isinstance(reply, Unanswered) or reply.failure not in NO_LISTENER:
                return reply
            deserted.append(reply)
        return deserted[0]
