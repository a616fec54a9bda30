"""Answers recorded from NCCL 2.28.9 on two H200, one training job of two ranks each.

healthy, two jobs of one user on one port; and three jobs that hang after about 4 s, read at the
seconds in the files' names: crossed (each rank waits in another communicator), late (rank 1 waits
for its input, and rank 0 for it), stopped (the process of rank 1 is stopped). Hosts are
masked, and a comma that 2.28 forgets (2.29 does not) is put back.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.hardware.nccl import NcclAnswer, RankLocation, parsed
from agent.jobs.nccl_jobs import NcclReading, lost, stalled, still, waited_for
from tests.support.nccl_json import status_json
from tests.support.nccl_service import RasListener, asked, reader

FOLDER = Path(__file__).parent / "transcripts"
GOLDEN = FOLDER / "reported.golden"
RECORDED = "2.28.9"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix == ".json")


def shown(name: str) -> NcclAnswer:
    return parsed((FOLDER / name).read_bytes())


def readings(job: str) -> list[NcclReading]:
    """All JSON of one job in order."""
    names = sorted(path.name for path in FILES if path.match(f"{job}-*.json"))
    return [NcclReading(float(name.split("-")[1][:5]), shown(name)) for name in names]


def in_words(answer: NcclAnswer) -> Iterator[str]:
    """An answer by line, to be reviewed."""
    for found in answer.communicators:
        yield f"  {found.key}"
        for rank in found.ranks:
            counts = ", ".join(f"{kind} {count}" for kind, count in rank.counts.items() if count)
            yield f"    rank {rank.rank} at {rank.host} {rank.pid} GPU {rank.nvml_device}: {counts}"
        for rank in found.silent:
            yield f"    silent: {rank.rank} at {rank.host} {rank.pid} GPU {rank.nvml_device}"


def test_what_is_reported(request: pytest.FixtureRequest) -> None:
    lines = [line for path in FILES for line in (path.name, *in_words(shown(path.name)))]
    text = "\n".join(lines) + "\n"
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text, encoding="ascii")
    assert text == GOLDEN.read_text(encoding="ascii")


TIMES = re.compile(r'\(\d\.\d+s\)|"(?:timestamp|collection_time_sec|timeouts_count)": [^,\n]+')
"""Time and duration of the question, which the tests' service does not repeat."""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_the_tests_service_writes_the_same_json(path: Path) -> None:
    written, recorded = status_json(shown(path.name), RECORDED), path.read_text(encoding="ascii")
    assert TIMES.sub("", written) == TIMES.sub("", recorded)


def test_two_jobs_on_one_port_are_distinguished() -> None:
    first, second = shown("two-jobs-first.json"), shown("two-jobs-second.json")
    assert not first.same_job(second)
    turns = iter((first, first, second))
    with RasListener(lambda: next(turns)) as listener:
        both = reader(listener.at).read(asked(2008, 2010, 2067, 2069))
    assert both.answers == (first, second)
    assert listener.asked == 3


def test_a_job_that_runs_moves() -> None:
    (before, after) = readings("crossed")[:2]
    assert still([before, after]) is False
    assert stalled([before, after]) == ()


def test_a_rank_that_is_late_is_named() -> None:
    hang = readings("late")
    assert stalled(hang[:2]) == ()
    (found,) = stalled(hang)
    assert (found.kind, found.launched, found.others_launched) == ("AllReduce", 1, 2)
    assert [(r.rank, r.host, r.pid, r.nvml_device) for r in found.behind] == [
        (1, "192.0.2.2", 3276, 1)
    ]
    assert still(hang[1:]) is True
    assert waited_for([found]) == {RankLocation("192.0.2.2", 3276, 1)}


def test_ranks_that_wait_for_one_another_are_both_named() -> None:
    found = stalled(readings("crossed"))
    assert [[rank.pid for rank in stall.behind] for stall in found] == [[1018], [1020]]
    assert {rank.pid for rank in waited_for(found)} == {1018, 1020}


def test_a_stopped_process_is_missing_in_all_its_communicators() -> None:
    hang = readings("stopped")
    later = NcclReading(15.0, hang[-1].answer)
    gone = lost([*hang, later])
    assert {(one.rank, one.pid) for one in gone} == {(1, 2338)}
    assert len(gone) == 3
    assert still([hang[-1], later]) is True
