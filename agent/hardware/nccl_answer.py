"""What NCCL's RAS service reports of one job: communicators, ranks on all nodes, who is missing.

RAS ("reliability, availability, serviceability") is a thread in every process that uses NCCL 2.24
or later. A count is of collectives that the process launched: not yet of finished ones, without
sends and receives, and since 2.26 without those that a CUDA graph replays. A job made of such
graphs therefore stands still in its counts while it works.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from agent.model import Absent, Reason


class RasFailure(StrEnum):
    """Why there is no answer."""

    REFUSED = "refused"  # no one listens: no NCCL job, an older NCCL, RAS disabled
    UNREACHABLE = "unreachable"  # this process may not connect, or loopback is not there
    NOT_NCCL = "not_nccl"  # somebody else's service has the port
    SILENT = "silent"  # takes connections and says nothing: a stopped process, a stuck thread
    SLOW = "slow"  # began to answer and did not end within the time allowed
    TOO_LARGE = "too_large"  # more bytes than allowed
    PROTOCOL = "protocol"  # NCCL answered, but with an error, or not to the end
    CHANGED = "changed"  # a whole answer in a form that is not known here
    FOREIGN = "foreign"  # the listener is no GPU process, or several users' or namespaces'
    BAD_VERSION = "bad_version"  # asking this NCCL may end its job
    UNKNOWN_VERSION = "unknown_version"  # which NCCL it is cannot be read


REASONS = {
    RasFailure.REFUSED: Reason.MISSING,
    RasFailure.UNREACHABLE: Reason.FAILED,
    RasFailure.NOT_NCCL: Reason.MISSING,
    RasFailure.SILENT: Reason.STALLED,
    RasFailure.SLOW: Reason.STALLED,
    RasFailure.TOO_LARGE: Reason.FAILED,
    RasFailure.PROTOCOL: Reason.FAILED,
    RasFailure.CHANGED: Reason.UNSUPPORTED,
    RasFailure.FOREIGN: Reason.DENIED,
    RasFailure.BAD_VERSION: Reason.UNSUPPORTED,
    RasFailure.UNKNOWN_VERSION: Reason.UNKNOWN,
}
"""The agent's general reason for each failure."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer; `detail` is a sentence that says what was asked and what came."""

    failure: RasFailure
    detail: str

    def absent(self) -> Absent:
        """The same as the agent's own kind of absence."""
        return Absent(REASONS[self.failure], f"{self.failure.value}: {self.detail}")


class RankLoss(StrEnum):
    """Why nothing is known of a rank."""

    UNRESPONSIVE = "unresponsive"  # its process did not answer in time: stopped, stuck or gone
    LEFT = "left"  # its process answers, but is no member: it starts, or has finished


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank that answered.

    `host` is the address that NCCL started from, empty where it is not shown; `pid` is the process
    number as the process sees it itself. `counts` holds launched collectives by kind.
    """

    rank: int
    host: str = ""
    pid: int | None = None
    nvml_device: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MissingRank:
    """One rank of which a communicator's other members know, without data of its own."""

    rank: int
    loss: RankLoss
    host: str = ""
    pid: int | None = None
    nvml_device: int | None = None


class Launched(NamedTuple):
    """How many ranks have launched so many collectives of one kind (AllReduce), and which."""

    kind: str
    operations: int
    ranks: int
    named: tuple[int, ...]


class CommunicatorKey(NamedTuple):
    """What identifies a communicator: two hashes."""

    hash: str
    second: str = ""

    def __str__(self) -> str:
        return self.hash


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator: `ranks` those listed, sorted; `missing` those known to be missing, sorted;
    `launched` is sorted by kind, then operations.
    """

    key: CommunicatorKey
    size: int
    ranks: tuple[Rank, ...] = ()
    missing: tuple[MissingRank, ...] = ()
    launched: tuple[Launched, ...] = ()


class RankProcess(NamedTuple):
    """A process of a job on any node; `host` and `pid` as NCCL reports them."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class NcclAnswer:
    """One job, as one of its processes reported it: every rank of every communicator."""

    nccl_version: str
    communicators: tuple[Communicator, ...] = ()


LONGEST_NAME = 64


def tallies(ranks: Iterable[Rank]) -> tuple[Launched, ...]:
    """The counts of ranks that are all listed, as groups of ranks with the same count."""
    found: dict[tuple[str, int], list[int]] = {}
    for rank in ranks:
        for kind, count in rank.counts.items():
            found.setdefault((kind, count), []).append(rank.rank)
    return tuple(
        Launched(kind, count, len(named), tuple(sorted(named)))
        for (kind, count), named in sorted(found.items())
    )


def processes(answer: NcclAnswer) -> frozenset[RankProcess]:
    """All processes that an answer names, missing ones included."""
    named: set[RankProcess] = set()
    for communicator in answer.communicators:
        ranks: tuple[Rank | MissingRank, ...] = (*communicator.ranks, *communicator.missing)
        named |= {RankProcess(rank.host, rank.pid) for rank in ranks if rank.pid is not None}
    return frozenset(named)


def same_job(one: NcclAnswer, other: NcclAnswer) -> bool:
    """Whether two answers report one job: a communicator or a process in common."""
    keys = {communicator.key for communicator in one.communicators}
    shared = any(communicator.key in keys for communicator in other.communicators)
    return shared or not processes(one).isdisjoint(processes(other))


def address(text: str) -> str:
    """A host as reported, or nothing where it cannot be one: it goes into labels and sentences."""
    plain = text[:LONGEST_NAME]
    known = plain not in ("", "unknown") and plain.isascii()
    return plain if known and all(c.isalnum() or c in ".:-_%" for c in plain) else ""
