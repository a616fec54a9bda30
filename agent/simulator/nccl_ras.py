"""The simulated RAS service: what NCCL would report of the job on a simulated machine."""

from collections.abc import Callable, Sequence

from agent.hardware.nccl import Communicator, NcclAnswer, Rank, RasRequest, RasRound
from agent.model import Absent, Reason
from agent.simulator.ranks import SimulatedRank

HERE = "127.0.0.1"
KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
"""Collectives that NCCL counts, in its order."""


def answer_of(listed: Sequence[SimulatedRank]) -> NcclAnswer:
    there = tuple(
        _rank(r, {**dict.fromkeys(KINDS, 0), **r.launched}) for r in listed if not r.missing
    )
    gone = tuple(_rank(r, {}) for r in listed if r.missing)
    return NcclAnswer((Communicator(f"0x{min(r.pid for r in listed):x} 0x1d:0x2d", there, gone),))


def _rank(rank: SimulatedRank, counts: dict[str, int]) -> Rank:
    return Rank(rank.rank, HERE, rank.pid, rank.gpu, counts)


class SimulatedRas:
    """The service of a simulated machine, without its socket and its forms."""

    def __init__(self, ranks: Callable[[], Sequence[SimulatedRank]]) -> None:
        self._ranks = ranks

    def read(self, request: RasRequest) -> RasRound:
        """One answer, at once; none where no job runs on several GPUs."""
        listed = self._ranks()
        if not listed:
            return RasRound(failure=Absent(Reason.MISSING, "no job listens"))
        return RasRound((answer_of(listed),), believed=frozenset(request.processes))
