"""A simulated RAS service: a listener that speaks as NCCL does, and jobs for it to tell of."""

import json
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from agent.hardware.nccl_answer import (
    RESULTS,
    Communicator,
    CommunicatorKey,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
    RankStatus,
    RasFailure,
    SilentProcess,
    Unanswered,
    tallies,
)
from agent.hardware.nccl_json import parse_json
from agent.hardware.nccl_ras import RasAddress, RasRound
from agent.hardware.nccl_text import parse_text
from agent.simulator.nccl_text import KINDS, Version, status_text
from agent.simulator.ranks import SimulatedRank

JSON = (2, 28, 7)
WITH_COMMA = (2, 29, 0)
"""The first versions that speak JSON, and that write it without forgetting a comma."""
COMMA = re.compile(r'("nvml_dev": -?\d+),(\s+"status": \{\s+"unresponsive")')
SECONDS = re.compile(r'("collection_time_sec": )([0-9.e-]+)')
INIT_STATES = {RankStatus.INIT: 7}
CODES = {words: code for code, words in RESULTS.items()}


def status_json(answer: NcclAnswer, version: Version) -> str:
    """The answer to STATUS after SET FORMAT json, in the form of one version."""
    document = {
        "nccl_version": ".".join(map(str, version)),
        "cuda_runtime_version": answer.cuda_runtime,
        "cuda_driver_version": answer.cuda_driver,
        "timestamp": answer.answered_at,
        "communicators_count": len(answer.communicators),
        "communicators": [_communicator(c) for c in answer.communicators],
        "ras": {"collection_time_sec": answer.seconds, "timeouts_count": answer.timeouts},
    }
    text = json.dumps(document, indent=2).replace(": []", ": [\n\n      ]") + "\n"
    text = SECONDS.sub(lambda found: f"{found[1]}{float(found[2]):.3f}", text)
    return text if version >= WITH_COMMA else COMMA.sub(r"\1\2", text)


def _communicator(communicator: Communicator) -> dict[str, Any]:
    return {
        "hash": f"0x{communicator.key.hash.lstrip('0') or '0'}",
        "secondary_hash": communicator.key.second,
        "size": communicator.size,
        "ranks_count": len(communicator.ranks),
        "missing_ranks_count": len(communicator.missing),
        "ranks": [_rank(rank) for rank in communicator.ranks],
        "missing_ranks": [_missing(rank) for rank in communicator.missing],
    }


def _seat(rank: Rank | MissingRank) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host or "unknown",
        "pid": -1 if rank.pid is None else rank.pid,
        "cuda_dev": rank.cuda_device,
        "nvml_dev": rank.nvml_device,
    }


def _rank(rank: Rank) -> dict[str, Any]:
    status = {
        "init_state": INIT_STATES.get(rank.status, 0),
        "async_error": CODES.get(rank.error, 0),
        "finalize_called": rank.status is RankStatus.FINALIZE,
        "destroy_flag": rank.status is RankStatus.FINALIZE,
        "abort_flag": rank.status is RankStatus.ABORT,
    }
    counts = {kind: rank.counts.get(kind, 0) for kind in KINDS}
    return {**_seat(rank), "status": status, "collective_counts": counts}


def _missing(rank: MissingRank) -> dict[str, Any]:
    status = {
        "unresponsive": rank.loss is not RankLoss.LEFT,
        "considered_dead": rank.loss is RankLoss.DEAD,
    }
    return {**_seat(rank), "status": status}


@dataclass(frozen=True, slots=True)
class SimulatedRanks:
    """A training whose ranks launch the same collectives each step, one GPU and process a rank.

    `host` of each rank in order; `step` in seconds, `collectives` launched in one, by kind. From
    `stuck_at` on (seconds) rank `stuck` launches nothing more, and the others one collective of
    each kind, for which they wait. From `stopped_at` on rank `stopped` does not answer; a minute
    later it counts as dead.
    """

    pids: tuple[int, ...]
    hosts: tuple[str, ...]
    step: float = 0.25
    collectives: Mapping[str, int] = field(default_factory=lambda: {"AllReduce": 3})
    name: str = "5f3759df00c0ffee"
    stuck: int | None = None
    stuck_at: float = 0.0
    stopped: int | None = None
    stopped_at: float = 0.0

    def answer(self, now: float) -> NcclAnswer:
        """What NCCL tells at `now`, seconds after the first step began."""
        gone = {self.stopped} if self.stopped is not None and now >= self.stopped_at else set()
        dead = bool(gone) and now >= self.stopped_at + 60
        listed = [n for n in range(len(self.pids)) if n not in gone]
        ranks = tuple(self._rank(number, now) for number in listed)
        loss = RankLoss.DEAD if dead else RankLoss.UNRESPONSIVE
        missing = [MissingRank(n, loss, *self._seat(n)) for n in sorted(gone - {None}, key=int)]
        return _answer(self.name, ranks, tuple(missing))

    def _rank(self, number: int, now: float) -> Rank:
        return Rank(
            number,
            *self._seat(number),
            counts={
                kind: self._count(each, number, now) for kind, each in self.collectives.items()
            },
            status=RankStatus.RUNNING,
        )

    def _seat(self, number: int) -> tuple[str, int, int, int]:
        device = self.hosts[:number].count(self.hosts[number])
        return self.hosts[number], self.pids[number], device, device

    def _count(self, each: int, number: int, now: float) -> int:
        """Collectives launched by then; ranks launch one after the other, 1 % of a step apart."""
        held = self.stuck is not None and now >= self.stuck_at
        if not held:
            return max(int((now / self.step - 0.01 * number) * each), 0)
        steps = int(self.stuck_at / self.step)
        return steps * each + (number != self.stuck)


def _answer(name: str, ranks: tuple[Rank, ...], missing: tuple[MissingRank, ...]) -> NcclAnswer:
    """The answer of a job of one communicator."""
    size = len(ranks) + len(missing)
    communicator = Communicator(
        key=CommunicatorKey(name, "0x1d:0x2d"),
        size=size,
        ranks=ranks,
        missing=missing,
        missing_count=len(missing),
        launched=tallies(ranks),
    )
    return NcclAnswer(
        nccl_version="",
        cuda_runtime=13000,
        cuda_driver=13000,
        answered_at="2026-11-22 12:00:00",
        nodes=len({r.host for r in ranks} | {r.host for r in missing}),
        processes=size,
        gpus=size,
        communicators=(communicator,),
        silent=tuple(
            SilentProcess(r.host, r.pid or 0, (r.cuda_device or 0,), r.loss is RankLoss.DEAD)
            for r in missing
        ),
        lists_all=True,
        seconds=0.002,
        timeouts=len(missing),
    )


HERE = "127.0.0.1"
NEWEST: Version = (2, 28, 9)


def answer_of(listed: Sequence[SimulatedRank]) -> NcclAnswer:
    """What NCCL tells of the job on a simulated machine."""
    there = tuple(
        Rank(r.rank, HERE, r.pid, r.gpu, r.gpu, r.launched, RankStatus.RUNNING)
        for r in listed
        if not r.missing
    )
    gone = tuple(
        MissingRank(r.rank, RankLoss.UNRESPONSIVE, HERE, r.pid, r.gpu, r.gpu)
        for r in listed
        if r.missing
    )
    return _answer(f"{min(r.pid for r in listed):016x}", there, gone)


class SimulatedRas:
    """The service of a simulated machine without its socket: the same text, read by the same
    reader."""

    def __init__(
        self, ranks: Callable[[], Sequence[SimulatedRank]], version: Version = NEWEST
    ) -> None:
        self._ranks = ranks
        self._version = version

    def read(self, wanted: Collection[int] = ()) -> RasRound:
        """One answer, at once; nobody listens where no job runs on several GPUs."""
        listed = self._ranks()
        if not listed:
            nobody = Unanswered(RasFailure.REFUSED, "nobody listens on a simulated port")
            return RasRound((), nobody, 0, 1, 0.0, 0.0)
        speaks_json = self._version >= JSON
        form, parse = (status_json, parse_json) if speaks_json else (status_text, parse_text)
        told = parse(form(answer_of(listed), self._version))
        if isinstance(told, Unanswered):
            return RasRound((), told, 0, 1, 0.0, 0.0)
        return RasRound((told,), None, 0, 1, 0.0, 0.0)


class _Session(socketserver.StreamRequestHandler):
    """One connection: commands by line until a status was told."""

    server: "RasListener"

    def handle(self) -> None:
        speaks_json = False
        while words := self.rfile.readline(1024).decode("ascii", "replace").strip().lower():
            if words.startswith("client protocol "):
                self._say("SERVER PROTOCOL 2\n")
            elif words.startswith("timeout "):
                self._say("OK\n")
            elif words == "set format json" and self.server.version >= JSON:
                speaks_json = True
                self._say("OK\n")
            elif words in ("status", "verbose status"):
                form = status_json if speaks_json else status_text
                self._say(form(self.server.answer(), self.server.version))
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

    def __init__(
        self, answer: Callable[[], NcclAnswer], version: Version, address: str = "127.0.0.1"
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, 0), _Session)
        self.answer = answer
        self.version = version
        self.at = RasAddress(address, self.server_address[1])
        threading.Thread(target=self.serve_forever, args=(0.02,), name="ras", daemon=True).start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
        super().__exit__(kind, error, trace)
