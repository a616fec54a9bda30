"""NCCL's view of the simulated job: its ranks, and the collectives each has launched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.simulator.gpu import SimulatedGpu
from agent.simulator.jobs import ProcessTeam, SimulatedJobs

BROADCASTS = 2  # Collectives at the start of DistributedDataParallel: the parameters, the buffers


@dataclass(frozen=True, slots=True)
class SimulatedRank:
    """One rank of the job that runs on several GPUs of the machine.

    `gpu` is NVML's index; `pid` that of the process; `launched` counts collectives by NCCL's name
    of their kind. `missing`: the process has ended.
    """

    rank: int
    pid: int
    gpu: int
    launched: Mapping[str, int]
    missing: bool = False


class CollectiveCounts:
    """Counts the collectives of each trainer since it started; times in seconds."""

    def __init__(self, gpus: Sequence[SimulatedGpu], jobs: SimulatedJobs) -> None:
        self._gpus = gpus
        self._jobs = jobs
        self._before: dict[int, float] = {}  # by pid: what its GPU had counted when it started

    def follow(self, now: float) -> None:
        """Trainers have come or gone."""
        counted = {team.trainer.pid: self._counted(team, now) for team in self._jobs.teams}
        self._before = {pid: self._before.get(pid, count) for pid, count in counted.items()}

    def reset(self, index: int, now: float) -> None:
        """The counters of this GPU are about to be 0."""
        for team in self._jobs.teams:
            if team.gpu == index:
                self._before[team.trainer.pid] -= self._counted(team, now)

    def _counted(self, team: ProcessTeam, now: float) -> float:
        return self._gpus[team.gpu].meter.read("collectives", now)

    def listed(self, now: float, late: int | None) -> list[SimulatedRank]:
        """The ranks; none where no job runs on two GPUs or more. All but rank `late` have launched
        one collective that it has not; None where all keep up."""
        if self._jobs.job.alone or len(self._jobs.teams) < 2:
            return []
        return [
            SimulatedRank(
                rank=rank,
                pid=team.trainer.pid,
                gpu=team.gpu,
                launched={
                    "Broadcast": BROADCASTS,
                    "AllReduce": int(self._counted(team, now) - self._before[team.trainer.pid])
                    + (late not in (None, rank)),
                },
                missing=team.trainer.pid not in self._jobs.processes,
            )
            for rank, team in enumerate(self._jobs.teams)
        ]
