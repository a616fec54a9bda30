"""JSON as NCCL 2.28.7 and later write it."""

import json
from typing import Any

import pytest

from agent.hardware.nccl_answer import (
    Communicator,
    CommunicatorKey,
    Launched,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
    RasFailure,
    Unanswered,
)
from agent.hardware.nccl_json import parse_json

RUNNING = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def rank(number: int, **changed: Any) -> dict[str, Any]:
    fields = {
        "rank": number,
        "host": "10.1.2.3",
        "pid": 4000 + number,
        "cuda_dev": 0,
        "nvml_dev": number,
        "status": RUNNING,
        "collective_counts": {"Broadcast": 1, "AllReduce": 70},
    }
    return fields | changed


def missing(number: int, unresponsive: bool, dead: bool) -> dict[str, Any]:
    status = {"unresponsive": unresponsive, "considered_dead": dead}
    place = {"host": "10.1.2.3", "pid": 4000 + number, "cuda_dev": 0, "nvml_dev": number}
    return {"rank": number, **place, "status": status}


def communicator(**changed: Any) -> dict[str, Any]:
    fields = {
        "hash": "0xabc",
        "secondary_hash": "0x1:0x2",
        "size": 2,
        "ranks_count": 2,
        "missing_ranks_count": 0,
        "ranks": [rank(1), rank(0)],
        "missing_ranks": [],
    }
    return fields | changed


def document(*communicators: object, **changed: Any) -> str:
    fields = {
        "nccl_version": "2.28.9",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13010,
        "timestamp": "2026-11-22 03:04:05",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.004, "timeouts_count": 1},
    }
    return json.dumps(fields | changed, indent=2)


def parsed(text: str) -> NcclAnswer:
    answer = parse_json(text)
    assert isinstance(answer, NcclAnswer)
    return answer


def test_everything_that_is_told_is_kept() -> None:
    counts = {"Broadcast": 1, "AllReduce": 70}
    ranks = tuple(Rank(n, "10.1.2.3", 4000 + n, n, counts) for n in (0, 1))
    assert parsed(document(communicator())) == NcclAnswer(
        nccl_version="2.28.9",
        communicators=(
            Communicator(
                CommunicatorKey("0000000000000abc", "0x1:0x2"),
                size=2,
                ranks=ranks,
                launched=(
                    Launched("AllReduce", 70, 2, (0, 1)),
                    Launched("Broadcast", 1, 2, (0, 1)),
                ),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("unresponsive", "dead", "loss"),
    [
        (True, False, RankLoss.UNRESPONSIVE),
        (True, True, RankLoss.UNRESPONSIVE),
        (False, False, RankLoss.LEFT),
    ],
)
def test_missing_ranks_are_named(unresponsive: bool, dead: bool, loss: RankLoss) -> None:
    entry = communicator(ranks=[rank(0)], missing_ranks=[missing(1, unresponsive, dead)])
    (shown,) = parsed(document(entry)).communicators
    assert shown.missing == (MissingRank(1, loss, "10.1.2.3", 4001, 1),)


def test_a_forgotten_comma_is_put_back() -> None:
    """NCCL 2.28 leaves out the comma after nvml_dev in its entries of missing ranks."""
    entry = communicator(ranks=[rank(0)], missing_ranks=[missing(1, True, False)])
    whole = document(entry)
    broken = whole.replace(
        '"nvml_dev": 1,\n          "status"', '"nvml_dev": 1\n          "status"'
    )
    assert broken != whole
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(broken)
    assert parse_json(broken) == parse_json(whole)


def test_a_rank_whose_process_is_not_told() -> None:
    shown = parsed(document(communicator(ranks=[rank(0, host="unknown", pid=-1)])))
    (found,) = shown.communicators[0].ranks
    assert (found.host, found.pid) == ("", None)


def test_a_job_between_communicators() -> None:
    assert parsed(document()).communicators == ()


UNFIT = {
    "no text": "",
    "no JSON": "NCCL version 2.27.5 compiled with CUDA 12.8\n",
    "cut off": document(communicator())[:400],
    "nested without end": '{"communicators":' + "[" * 200_000,
    "a number without end": '{"communicators": [' + "9" * 10_000 + "]}",
    "two documents": document() + document(),
}


@pytest.mark.parametrize("text", UNFIT.values(), ids=UNFIT.keys())
def test_what_is_no_whole_document(text: str) -> None:
    answer = parse_json(text)
    assert isinstance(answer, Unanswered)
    assert answer.failure is RasFailure.PROTOCOL
    assert str(len(text)) in answer.detail


@pytest.mark.parametrize(
    "text",
    ["[]", "null", "{}", '{"communicators": {}}', document({}), document(communicator(size=None))],
)
def test_a_document_of_another_form(text: str) -> None:
    answer = parse_json(text)
    assert isinstance(answer, Unanswered)
    assert answer.failure is RasFailure.CHANGED


def test_what_cannot_be_read_costs_itself() -> None:
    odd = communicator(
        ranks=[rank(0), rank(True), {"rank": -1}, None, "rank"],
        missing_ranks=[{}, missing(1, True, False)],
    )
    shown = parsed(document(odd, {"hash": ""}, "communicator"))
    assert [r.rank for r in shown.communicators[0].ranks] == [0]
    assert [r.rank for r in shown.communicators[0].missing] == [1]


def test_values_that_cannot_be_are_absent() -> None:
    odd = rank(0, host='<b>"x"', pid=1.5, cuda_dev=2**70, nvml_dev="1")
    odd["collective_counts"] = {
        "AllReduce": 1,
        "all reduce": 2,
        "x" * 99: 3,
        "Reduce": -1,
        "Odd": "1",
    }
    text = document(
        communicator(ranks=[odd]),
        nccl_version="2.28\n9",
    )
    shown = parsed(text)
    (found,) = shown.communicators[0].ranks
    assert found == Rank(0, counts={"AllReduce": 1})
    assert shown.nccl_version == ""
