"""What NCCL is asked and what it reported: between who knows the jobs and the thread that asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.jobs.collectives import NcclReading
from agent.jobs.nccl_jobs import LocalJob, UnmatchedJob
from agent.model import Labels


@dataclass(frozen=True, slots=True)
class NcclReport:
    """The newest round: the readings of each job by its key, oldest first, the local processes
    that they may name, and why there are none of others.

    `at` is on the agent's monotonic clock.
    """

    at: float = 0.0
    readings: Mapping[str, tuple[NcclReading, ...]] = field(default_factory=dict)
    believed: frozenset[int] = frozenset()
    unheard: Mapping[str, UnmatchedJob] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class NcclExchange:
    """Written by two threads, each its own part; every part is replaced whole, so none waits.

    `jobs` and `gpus` (of each process by its number) are written by who knows the jobs, `latest` by
    who asks NCCL.
    """

    jobs: tuple[LocalJob, ...] = ()
    gpus: Mapping[int, Labels] = field(default_factory=dict)
    latest: NcclReport = field(default_factory=NcclReport)
