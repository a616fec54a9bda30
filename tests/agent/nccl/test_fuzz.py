"""Whatever bytes come, an answer or a reason comes out, and nothing that cannot be is reported."""

import json
import string

from hypothesis import given
from hypothesis import strategies as st

from agent.hardware.nccl_answer import NcclAnswer, RasFailure, Unanswered, processes
from agent.hardware.nccl_json import parse_json
from tests.support.nccl_json import status_json
from tests.support.nccl_service import SimulatedRanks

HOSTS = ("10.0.0.1",) * 4 + ("fe80::1",) * 4
JOB = SimulatedRanks(tuple(range(31, 39)), HOSTS, stuck=3, stuck_at=9, stopped=7, stopped_at=9)
JSON = status_json(JOB.answer(10), (2, 28, 9))
FIELDS = st.sampled_from(
    [
        *("communicators", "hash", "secondary_hash", "size", "ranks", "missing_ranks", "ras"),
        *("rank", "host", "pid", "cuda_dev", "nvml_dev", "status", "init_state", "abort_flag"),
        *("unresponsive", "considered_dead", "collective_counts", "AllReduce", "async_error"),
        *("missing_ranks_count", "collection_time_sec", "timeouts_count", "nccl_version"),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=6),
    max_leaves=40,
)


def check(answer: NcclAnswer | Unanswered) -> None:
    """What holds of every result."""
    if isinstance(answer, Unanswered):
        assert answer.failure in (RasFailure.PROTOCOL, RasFailure.CHANGED)
        assert answer.detail.isprintable()
        return
    for host, pid in processes(answer):
        assert pid >= 0
        assert host.isascii()
        assert set(host) <= {*string.ascii_letters, *string.digits, *".:-_%"}
    for communicator in answer.communicators:
        assert communicator.size >= 0
        assert [r.rank for r in communicator.ranks] == sorted(r.rank for r in communicator.ranks)
        for group in communicator.launched:
            assert group.operations >= 0
            assert group.kind.isidentifier()
            assert group.kind.isascii()
            assert list(group.named) == sorted(group.named)
        for rank in communicator.ranks:
            assert all(count >= 0 for count in rank.counts.values())


@given(VALUES)
def test_any_json(value: object) -> None:
    check(parse_json(json.dumps(value)))


@given(st.dictionaries(FIELDS, VALUES, max_size=6), st.lists(VALUES, max_size=4))
def test_any_list_of_communicators(fields: dict[str, object], communicators: list[object]) -> None:
    check(parse_json(json.dumps({**fields, "communicators": communicators})))


@given(st.data())
def test_an_answer_with_a_hole(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(JSON)))
    end = data.draw(st.integers(start, len(JSON)))
    filling = data.draw(st.text(max_size=20))
    broken = JSON[:start] + filling + JSON[end:]
    check(parse_json(broken))


@given(st.binary(max_size=400))
def test_any_bytes(noise: bytes) -> None:
    text = noise.decode("utf-8", errors="replace")
    answer = parse_json(text)
    assert isinstance(answer, Unanswered)
    check(answer)


@given(st.integers(0, len(JSON) - 3))
def test_json_that_is_cut_off_is_never_an_answer(end: int) -> None:
    assert isinstance(parse_json(JSON[:end]), Unanswered)


def test_a_job_of_thousands_of_ranks() -> None:
    pids = tuple(range(1000, 1000 + 4096))
    hosts = tuple(f"10.0.{n // 8 // 256}.{n // 8 % 256}" for n in range(4096))
    job = SimulatedRanks(pids, hosts, stuck=4000, stuck_at=9)
    shown = parse_json(status_json(job.answer(10), (2, 28, 9)))
    assert isinstance(shown, NcclAnswer)
    assert len(processes(shown)) == 4096
    assert [g.named for g in shown.communicators[0].launched if g.ranks == 1] == [(4000,)]
