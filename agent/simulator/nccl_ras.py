"""The simulated RAS service: what NCCL would report of the job on a simulated machine."""

from collections.abc import Callable, Sequence

from agent.hardware.nccl_answer import (
    Communicator,
    CommunicatorKey,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
    RasFailure,
    Unanswered,
    tallies,
)
from agent.hardware.nccl_ras import RasRequest, RasRound
from agent.simulator.ranks import SimulatedRank

HERE = "127.0.0.1"
VERSION = "2.30.4"
KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
"""What NCCL counts, in its order."""


def answer_about(
    name: str, ranks: tuple[Rank, ...], missing: tuple[MissingRank, ...]
) -> NcclAnswer:
    """The answer of a job of one communicator."""
    communicator = Communicator(
        key=CommunicatorKey(name, "0x1d:0x2d"),
        size=len(ranks) + len(missing),
        ranks=ranks,
        missing=missing,
        launched=tallies(ranks),
    )
    return NcclAnswer(VERSION, (communicator,))


def answer_of(listed: Sequence[SimulatedRank]) -> NcclAnswer:
    """What NCCL reports of the job on a simulated machine."""
    there = tuple(Rank(r.rank, HERE, r.pid, r.gpu, _counts(r)) for r in listed if not r.missing)
    gone = tuple(
        MissingRank(r.rank, RankLoss.UNRESPONSIVE, HERE, r.pid, r.gpu) for r in listed if r.missing
    )
    return answer_about(f"{min(r.pid for r in listed):016x}", there, gone)


def _counts(rank: SimulatedRank) -> dict[str, int]:
    return {kind: rank.launched.get(kind, 0) for kind in KINDS}


class SimulatedRas:
    """The service of a simulated machine, without its socket and its forms."""

    def __init__(self, ranks: Callable[[], Sequence[SimulatedRank]]) -> None:
        self._ranks = ranks

    def read(self, request: RasRequest) -> RasRound:
        """One answer, at once; none where no job runs on several GPUs."""
        listed = self._ranks()
        if not listed:
            return RasRound((), Unanswered(RasFailure.REFUSED, "no job listens"))
        return RasRound((answer_of(listed),), None, 1, believed=frozenset(request.processes))
