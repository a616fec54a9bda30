"""Jobs for NCCL to report, and a listener on a real socket that speaks as its service does."""

import socketserver
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType

from agent.hardware.files import RealFiles
from agent.hardware.nccl import (
    LIMITS,
    Communicator,
    NcclAnswer,
    Rank,
    RasAddress,
    RasLimits,
    RasReader,
    RasRequest,
)
from agent.hardware.nccl_guard import RasGuard
from agent.simulator.machine import KINDS
from tests.support.nccl_json import status_json


@dataclass(frozen=True, slots=True)
class SimulatedRanks:
    """A training whose ranks launch the same collectives each step, one GPU and process a rank.

    `host` of each rank in order; `step` in seconds, `collectives` launched in one, by kind. From
    `stuck_at` on (seconds) rank `stuck` launches nothing more, and the others one collective of
    each kind, for which they wait. From `stopped_at` on rank `stopped` does not answer.
    """

    pids: tuple[int, ...]
    hosts: tuple[str, ...]
    step: float = 0.25
    collectives: Mapping[str, int] = field(default_factory=lambda: {"AllReduce": 3})
    name: str = "0x5f3759df00c0ffee"
    stuck: int | None = None
    stuck_at: float = 0.0
    stopped: int | None = None
    stopped_at: float = 0.0

    def answer(self, now: float) -> NcclAnswer:
        """NCCL's answer at `now`, seconds after the first step began."""
        gone = {self.stopped} if self.stopped is not None and now >= self.stopped_at else set()
        ranks = [self._rank(number, now) for number in range(len(self.pids))]
        there = tuple(rank for rank in ranks if rank.rank not in gone)
        silent = tuple(replace(rank, counts={}) for rank in ranks if rank.rank in gone)
        return NcclAnswer((Communicator(f"{self.name} 0x1d:0x2d", there, silent),))

    def _rank(self, number: int, now: float) -> Rank:
        counts = {kind: self._count(each, number, now) for kind, each in self.collectives.items()}
        return Rank(number, *self._seat(number), dict.fromkeys(KINDS, 0) | counts)

    def _seat(self, number: int) -> tuple[str, int, int]:
        host = self.hosts[number]
        return host, self.pids[number], self.hosts[:number].count(host)

    def _count(self, each: int, number: int, now: float) -> int:
        """Collectives launched by then; ranks launch one after the other, 1 % of a step apart."""
        held = self.stuck is not None and now >= self.stuck_at
        if not held:
            return max(int((now / self.step - 0.01 * number) * each), 0)
        steps = int(self.stuck_at / self.step)
        return steps * each + (number != self.stuck)


class Admitting(RasGuard):
    """A guard that admits every listener: what is asked then is what a test is about."""

    def __init__(self) -> None:
        super().__init__(RealFiles("/"))

    def admitted(
        self, host: str, port: int, gpu_processes: Collection[int], *, unknown: bool
    ) -> frozenset[int]:
        return frozenset(gpu_processes)


def reader(*addresses: RasAddress, limits: RasLimits = LIMITS) -> RasReader:
    """A reader without the guard."""
    return RasReader(addresses, limits, Admitting())


def asked(*pids: int, connections: int = 4) -> RasRequest:
    """A request for these processes, which know themselves by the same numbers."""
    return RasRequest({pid: pid for pid in pids}, pids, connections=connections)


class _Session(socketserver.StreamRequestHandler):
    """One connection: commands by line until a status was reported."""

    server: "RasListener"

    def handle(self) -> None:
        while words := self.rfile.readline(1024).decode("ascii", "replace").strip().lower():
            if words.startswith("client protocol "):
                self._say("SERVER PROTOCOL 2\n")
            elif words.startswith("timeout ") or (
                words == "set format json" and self.server.speaks_json
            ):
                self._say("OK\n")
            elif words in ("status", "verbose status"):
                self.server.asked += 1
                self._say(status_json(self.server.answer()))
                return
            else:
                self._say(f"ERROR: Unknown command {words}\n")

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode())


class RasListener(socketserver.ThreadingTCPServer):
    """A RAS service on a free port of 127.0.0.1; `answer` is called for every status.

    A context manager: it listens from construction on and answers on daemon threads until left.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, answer: Callable[[], NcclAnswer], *, speaks_json: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.answer = answer
        self.speaks_json = speaks_json
        self.asked = 0
        self.at = RasAddress("127.0.0.1", self.server_address[1])
        threading.Thread(target=self.serve_forever, args=(0.02,), name="ras", daemon=True).start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
        super().__exit__(kind, error, trace)
