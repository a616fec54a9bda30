"""The status of a job in NCCL's own words: text as every version speaks it.

Written after NCCL's output, not after the parser: tests hold the two against each other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent.hardware.nccl_answer import (
    ALL_KINDS,
    Communicator,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
)
from agent.simulator.nccl_ras import KINDS

Version = tuple[int, int, int]
BY_KIND = (2, 26, 0)
"""The first version that counts by kind."""


class _Flagged(NamedTuple):
    """A communicator as the text's table tells it."""

    communicator: Communicator
    nodes: int
    errors: tuple[str, ...]


def status_text(answer: NcclAnswer, version: Version) -> str:
    """The answer to VERBOSE STATUS; communicators must list all their ranks, or miss them."""
    flagged = sorted(
        (_flagged(c, version) for c in answer.communicators),
        key=lambda f: (-f.communicator.size, -f.nodes, _rank_errors(f.errors)),
    )
    groups: dict[tuple[int, int, tuple[str, ...]], list[_Flagged]] = {}
    for found in flagged:
        alike = (found.communicator.size, found.nodes, found.errors)
        groups.setdefault(alike, []).append(found)
    lines = [*_head(answer, version), *_table(list(groups.values()))]
    lines += ["", "Errors", "======", "", *_silent(answer)]
    named = [
        (f"#{number}-{place}", found)
        for number, members in enumerate(groups.values())
        for place, found in enumerate(members)
    ]
    for name, found in named:
        lines += _errors(found, name, version)
    lines += ["Warnings", "========", ""]
    if answer.silent:
        lines += ["TIMEOUT"]
        lines += ["  Encountered 1 communication timeout while gathering communicator data", ""]
    for name, found in named:
        if "MISMATCH" in found.errors:
            lines += _mismatch(found, name, version)
    return "\n".join(lines) + "\n"


def _rank_errors(errors: tuple[str, ...]) -> int:
    weights = {"INCOMPLETE": 4, "MISMATCH": 1}
    return -sum(weights[error] for error in errors)


def _head(answer: NcclAnswer, version: Version) -> list[str]:
    digits = 3 if version >= BY_KIND else 2
    name = ".".join(map(str, version))
    nodes, processes, gpus = answer.nodes or 0, answer.processes or 0, answer.gpus or 0
    each = processes // max(nodes, 1), gpus // max(processes, 1)
    return [
        f"NCCL version {name} compiled with CUDA 13.0",
        "CUDA runtime version 13000, driver version 13000",
        "",
        "Job summary",
        "===========",
        "",
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        f"{nodes:7}  {each[0]:9}  {each[1]:11}  {processes:9}  {gpus:7}",
        "",
        f"Communicators... ({0.002:.{digits}f}s)",
        "=============",
        "",
    ]


def _table(groups: list[list[_Flagged]]) -> Iterator[str]:
    if not groups:
        yield "No communicator data collected!"
        return
    yield "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors"
    yield "    #  in group  per comm  per node  per comm  in group"
    for number, alike in enumerate(groups):
        first = alike[0]
        hosts = Counter(rank.host for f in alike for rank in f.communicator.ranks)
        each = sorted({ranks // len(alike) for ranks in hosts.values()})
        shown = str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}"
        devices = {(r.pid, r.nvml_device) for f in alike for r in f.communicator.ranks}
        yield (
            f"{number:5}  {len(alike):8}  {first.nodes:8}  {shown:>8}  "
            f"{first.communicator.size:8}  {len(devices):8}   RUNNING  "
            f"{','.join(first.errors) or 'OK':>6}"
        )


def _flagged(communicator: Communicator, version: Version) -> _Flagged:
    lost = [rank for rank in communicator.missing if rank.loss is not RankLoss.LEFT]
    left = len(lost) < len(communicator.missing)
    differ = any(len(_shares(communicator.ranks, kind, version)) > 1 for kind in _kinds(version))
    told = {"INCOMPLETE": bool(lost), "MISMATCH": differ or left}
    return _Flagged(
        communicator,
        len({rank.host for rank in communicator.ranks}),
        tuple(name for name, is_so in told.items() if is_so),
    )


def _kinds(version: Version) -> tuple[str, ...]:
    return KINDS if version >= BY_KIND else (ALL_KINDS,)


def _shares(ranks: Iterable[Rank], kind: str, version: Version) -> dict[int, list[Rank]]:
    """Ranks by how many collectives of a kind they launched."""
    found: dict[int, list[Rank]] = {}
    for rank in ranks:
        count = rank.counts.get(kind, 0) if version >= BY_KIND else sum(rank.counts.values())
        found.setdefault(count, []).append(rank)
    return found


def _silent(answer: NcclAnswer) -> Iterator[str]:
    if not answer.silent:
        return
    count = len(answer.silent)
    yield "INCOMPLETE"
    yield f"  Missing communicator data from {count} job process{'es' * (count > 1)}"
    for host, pid in answer.silent:
        yield f"  Process {pid} on node {host} managing GPU 0"
    yield ""


def _place(rank: Rank | MissingRank) -> str:
    if rank.pid is None:
        return "[process information not found]"
    return f"GPU {rank.nvml_device} managed by process {rank.pid} on node {rank.host}"


def _errors(found: _Flagged, name: str, version: Version) -> Iterator[str]:
    head = f"{name} ({found.communicator.key.hash})"
    if "INCOMPLETE" in found.errors:
        lost = [r for r in found.communicator.missing if r.loss is not RankLoss.LEFT]
        plural = "s" * (len(lost) > 1)
        yield f"{head} INCOMPLETE"
        yield f"  Missing communicator data from {len(lost)} rank{plural}"
        if version >= BY_KIND:
            yield from (f"  Rank {rank.rank} -- {_place(rank)}" for rank in lost)
        else:
            yield f"  The missing rank{plural}: {','.join(str(rank.rank) for rank in lost)}"
        yield ""


def _group(ranks: list[Rank], one: str, many: str, size: int) -> Iterator[str]:
    """Ranks of which the same is said: told one by one where they are fewer than half."""
    if len(ranks) > 1:
        yield f"  {len(ranks)} ranks {many}"
    if len(ranks) == 1:
        yield f"  Rank {ranks[0].rank} {one} -- {_place(ranks[0])}"
    elif len(ranks) < size / 2:
        yield from (f"  Rank {rank.rank} -- {_place(rank)}" for rank in ranks)


def _mismatch(found: _Flagged, name: str, version: Version) -> Iterator[str]:
    communicator = found.communicator
    yield f"{name} ({communicator.key.hash}) MISMATCH"
    yield from _different_status(communicator, version)
    for kind in _kinds(version):
        shares = _shares(communicator.ranks, kind, version)
        if len(shares) < 2:
            continue
        yield f"  Communicator ranks have different {kind} operation counts"
        for count, ranks in sorted(shares.items(), key=lambda s: (-len(s[1]), -s[0])):
            words = f"launched up to operation {count}"
            if not count and version >= BY_KIND:
                words = "not launched any operations"
            yield from _group(ranks, f"has {words}", f"have {words}", communicator.size)
        yield ""


def _different_status(communicator: Communicator, version: Version) -> Iterator[str]:
    left = [rank for rank in communicator.missing if rank.loss is RankLoss.LEFT]
    if not left:
        return
    yield "  Communicator ranks have different status"
    running, status = list(communicator.ranks), "status RUNNING"
    yield from _group(running, f"has {status}", f"have {status}", communicator.size)
    if version < BY_KIND:
        numbers = ",".join(str(rank.rank) for rank in left)
        if len(left) == 1:
            yield f"  Rank {numbers} has status UNKNOWN"
        else:
            yield f"  {len(left)} ranks have status UNKNOWN"
            yield f"  The unknown ranks: {numbers}"
    elif len(left) == 1:
        yield f"  Rank {left[0].rank} has status NOCOMM -- {_place(left[0])}"
    else:
        yield f"  {len(left)} ranks have status NOCOMM"
        yield from (f"  Rank {rank.rank} -- {_place(rank)}" for rank in left)
