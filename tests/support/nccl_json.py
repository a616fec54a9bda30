"""The status of a job in NCCL's own words.

Written after NCCL's output, not after the parser: tests hold the two against each other.
"""

import json
from typing import Any

from agent.hardware.nccl import Communicator, NcclAnswer, Rank

RUNNING = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}
SILENT = {"unresponsive": True, "considered_dead": False}


def status_json(answer: NcclAnswer, version: str = "2.30.4") -> str:
    """The answer to STATUS after SET FORMAT json."""
    document = {
        "nccl_version": version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-22 12:00:00",
        "communicators_count": len(answer.communicators),
        "communicators": [_communicator(c) for c in answer.communicators],
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
    }
    return json.dumps(document, indent=2).replace(": []", ": [\n\n      ]") + "\n"


def _communicator(communicator: Communicator) -> dict[str, Any]:
    first, _, second = communicator.key.partition(" ")
    ranks = [_seat(r, RUNNING) | {"collective_counts": r.counts} for r in communicator.ranks]
    return {
        "hash": first,
        "secondary_hash": second,
        "size": len(communicator.ranks) + len(communicator.silent),
        "ranks_count": len(communicator.ranks),
        "missing_ranks_count": len(communicator.silent),
        "ranks": ranks,
        "missing_ranks": [_seat(rank, SILENT) for rank in communicator.silent],
    }


def _seat(rank: Rank, status: dict[str, Any]) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host or "unknown",
        "pid": rank.pid,
        "cuda_dev": rank.nvml_device,
        "nvml_dev": rank.nvml_device,
        "status": status,
    }
