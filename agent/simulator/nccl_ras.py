"""The simulated RAS service: what NCCL would tell of the job on a simulated machine."""

import json
import re
from collections.abc import Callable, Collection, Sequence
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
from agent.hardware.nccl_ras import RasRound
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


def answer_about(
    name: str, ranks: tuple[Rank, ...], missing: tuple[MissingRank, ...]
) -> NcclAnswer:
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
    return answer_about(f"{min(r.pid for r in listed):016x}", there, gone)


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
