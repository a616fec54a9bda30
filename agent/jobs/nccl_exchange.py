"""What NCCL is asked and what it told: between who knows the jobs and the thread that asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.jobs.collectives import NcclReading
from agent.jobs.nccl_jobs import LocalJob, UnmatchedJob
from agent.model import Labels


@dataclass(frozen=True, slots=True)
class NcclReport:
    """The newest round: the readings of each job by its key, oldest first, and who was not told of.

    `at` is on the agent's monotonic clock.
    """

    at: float = 0.0
    readings: Mapping[str, tuple[NcclReading, ...]] = field(default_factory=dict)
    unheard: Mapping[str, UnmatchedJob] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class NcclExchange:
    """Written by two threads, each its own part; every part is replaced whole, so none waits.

    `jobs`, `gpus` (the GPU of each process of a job, by its key and the number that the process
    sees itself) and `suspected` (whether a job may hang) are written by who knows the jobs,
    `latest` by who asks NCCL.
    """

    jobs: tuple[LocalJob, ...] = ()
    gpus: Mapping[str, Mapping[int, Labels]] = field(default_factory=dict)
    suspected: bool = False
    latest: NcclReport = field(default_factory=NcclReport)
