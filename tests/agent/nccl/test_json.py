"""JSON as NCCL 2.28.7 and later write it; whatever bytes come, an answer or a reason comes out."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hardware.nccl import NcclAnswer, parsed
from agent.model import Absent, Reason
from tests.support.nccl_json import status_json
from tests.support.nccl_service import SimulatedRanks

HOSTS = ("10.0.0.1",) * 4 + ("fe80::1",) * 4
PIDS = tuple(range(31, 39))
JOB = SimulatedRanks(PIDS, HOSTS, collectives={"AllReduce": 3, "AllGather": 1})
STUCK = SimulatedRanks(PIDS, HOSTS, stuck=3, stuck_at=9, stopped=7, stopped_at=9)
WHOLE = status_json(STUCK.answer(10))


@pytest.mark.parametrize("now", [0.0, 8.9, 10.0, 80.0])
@pytest.mark.parametrize("job", [JOB, STUCK], ids=["healthy", "stuck"])
def test_all_is_read_that_nccl_writes(job: SimulatedRanks, now: float) -> None:
    assert parsed(status_json(job.answer(now)).encode()) == job.answer(now)


def test_a_job_between_communicators() -> None:
    assert parsed(status_json(NcclAnswer()).encode()) == NcclAnswer()


def changed(place: str, **fields: Any) -> str:
    """The status with other fields in the first communicator, its first rank, or its missing one"""
    document = json.loads(WHOLE)
    communicator = document["communicators"][0]
    where = {
        "communicator": communicator,
        "rank": communicator["ranks"][0],
        "missing": communicator["missing_ranks"][0],
    }
    where[place].update(fields)
    return json.dumps(document)


def test_ranks_that_left_or_have_no_process_are_passed_over() -> None:
    left = {"unresponsive": False, "considered_dead": False}
    (found,) = parsed(changed("missing", status=left).encode()).communicators
    assert (len(found.ranks), found.silent) == (7, ())
    (found,) = parsed(changed("rank", pid=-1).encode()).communicators
    assert [rank.rank for rank in found.ranks] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("host", ["unknown", '<b>"x"', "two words", "é"])
def test_a_host_that_can_be_none_is_empty(host: str) -> None:
    (found,) = parsed(changed("rank", host=host).encode()).communicators
    assert found.ranks[0].host == ""


UNFIT = {
    "no text": "",
    "no JSON": "NCCL version 2.27.5 compiled with CUDA 12.8\n",
    "cut off": WHOLE[:400],
    "nested without end": '{"communicators":' + "[" * 200_000,
    "a number without end": '{"communicators": [' + "9" * 10_000 + "]}",
    "two documents": WHOLE + WHOLE,
    "a list": "[]",
    "no communicators": "{}",
    "one communicator": '{"communicators": {}}',
    "an odd number": changed("rank", rank=-1),
    "an odd kind": changed("rank", collective_counts={"all reduce": 2}),
    "an odd count": changed("rank", collective_counts={"Reduce": -1}),
    "an odd process": changed("rank", pid=1.5),
    "a long host": changed("rank", host="x" * 99),
    "no hash": changed("communicator", hash=None),
}


@pytest.mark.parametrize("text", UNFIT.values(), ids=UNFIT.keys())
def test_what_is_no_status_is_a_reason(text: str) -> None:
    with pytest.raises(Absent, match=f"of {len(text)} bytes cannot be read") as raised:
        parsed(text.encode())
    assert raised.value.reason is Reason.FAILED
    assert str(raised.value).isprintable()


FIELDS = st.sampled_from(
    [
        *("communicators", "hash", "secondary_hash", "size", "ranks", "missing_ranks", "ras"),
        *("rank", "host", "pid", "nvml_dev", "status", "unresponsive", "collective_counts"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=6),
    max_leaves=40,
)


def check(text: bytes) -> None:
    """Check the invariants of every result."""
    try:
        answer = parsed(text)
    except Absent:
        return
    for host, pid in answer.processes:
        assert pid >= 0
        assert set(host) <= {*string.ascii_letters, *string.digits, *".:-_%"}
    for communicator in answer.communicators:
        assert [r.rank for r in communicator.ranks] == sorted(r.rank for r in communicator.ranks)
        for rank in communicator.ranks:
            assert all(count >= 0 and kind.isidentifier() for kind, count in rank.counts.items())


@given(st.dictionaries(FIELDS, VALUES, max_size=6), st.lists(VALUES, max_size=4))
def test_any_list_of_communicators(fields: dict[str, object], communicators: list[object]) -> None:
    check(json.dumps({**fields, "communicators": communicators}).encode())


@given(st.data())
def test_an_answer_with_a_hole(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(WHOLE)))
    end = data.draw(st.integers(start, len(WHOLE)))
    check((WHOLE[:start] + data.draw(st.text(max_size=20)) + WHOLE[end:]).encode())


@given(st.binary(max_size=400))
def test_any_bytes(noise: bytes) -> None:
    with pytest.raises(Absent):
        parsed(noise)


@given(st.integers(0, len(WHOLE) - 3))
def test_json_that_is_cut_off_is_never_an_answer(end: int) -> None:
    with pytest.raises(Absent):
        parsed(WHOLE[:end].encode())


def test_a_job_of_thousands_of_ranks() -> None:
    pids = tuple(range(1000, 1000 + 4096))
    hosts = tuple(f"10.0.{n // 8 // 256}.{n // 8 % 256}" for n in range(4096))
    job = SimulatedRanks(pids, hosts, stuck=4000, stuck_at=9)
    assert len(parsed(status_json(job.answer(10)).encode()).processes) == 4096
