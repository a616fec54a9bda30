"""The status of a job in NCCL's own words: JSON as every version speaks it.

Written after NCCL's output, not after the parser: tests hold the two against each other.
"""

import json
import re
from typing import Any

from agent.hardware.nccl_answer import (
    Communicator,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
)
from agent.simulator.nccl_ras import KINDS

Version = tuple[int, int, int]
JSON = (2, 28, 7)
WITH_COMMA = (2, 29, 0)
"""The first versions that speak JSON, and that write it without forgetting a comma."""
COMMA = re.compile(r'("nvml_dev": -?\d+),(\s+"status": \{\s+"unresponsive")')
RUNNING = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def status_json(answer: NcclAnswer, version: Version) -> str:
    """The answer to STATUS after SET FORMAT json, in the form of one version."""
    document = {
        "nccl_version": ".".join(map(str, version)),
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-22 12:00:00",
        "communicators_count": len(answer.communicators),
        "communicators": [_communicator(c) for c in answer.communicators],
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
    }
    text = json.dumps(document, indent=2).replace(": []", ": [\n\n      ]") + "\n"
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
        "cuda_dev": rank.nvml_device,
        "nvml_dev": rank.nvml_device,
    }


def _rank(rank: Rank) -> dict[str, Any]:
    counts = {kind: rank.counts.get(kind, 0) for kind in KINDS}
    return {**_seat(rank), "status": RUNNING, "collective_counts": counts}


def _missing(rank: MissingRank) -> dict[str, Any]:
    status = {"unresponsive": rank.loss is not RankLoss.LEFT, "considered_dead": False}
    return {**_seat(rank), "status": status}
