"""Text as NCCL 2.24 to 2.27 write it, line by line."""

import pytest

from agent.hardware.nccl_answer import (
    CommunicatorKey,
    Launched,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
    RankProcess,
    RasFailure,
    Unanswered,
)
from agent.hardware.nccl_text import parse_text

TABLE = (
    "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    "    #  in group  per comm  per node  per comm  in group\n"
)
SUMMARY = (
    "  Nodes  Processes         GPUs  Processes     GPUs\n"
    "(total)   per node  per process    (total)  (total)\n"
    "      2          4            1          8        8\n"
)
HASH = "00c0ffee00c0ffee"


def status(
    rows: str = "    0         1         2         4         8         8   RUNNING      OK\n",
    errors: str = "",
    warnings: str = "",
    summary: str = SUMMARY,
) -> str:
    return (
        "NCCL version 2.27.5 compiled with CUDA 12.9\n"
        "CUDA runtime version 12090, driver version 13000\n\n"
        f"Job summary\n===========\n\n{summary}\nCommunicators... (0.015s)\n=============\n\n"
        f"{TABLE}{rows}\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}"
    )


def parsed(text: str) -> NcclAnswer:
    answer = parse_text(text)
    assert isinstance(answer, NcclAnswer)
    return answer


def mismatch(body: str, size: int = 8) -> NcclAnswer:
    rows = f"    0         1         2         4  {size:8}  {size:8}   RUNNING  MISMATCH\n"
    return parsed(status(rows, warnings=f"#0-0 ({HASH}) MISMATCH\n{body}\n"))


def test_a_healthy_job_is_numbers_only() -> None:
    assert parsed(status()) == NcclAnswer("2.27.5", nodes=2, processes=8, gpus=8)


def test_ranks_that_are_behind_are_named_and_so_are_the_others() -> None:
    told = mismatch(
        "  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 6650\n"
        "  Rank 5 has launched up to operation 6649 -- GPU 0 (NVML 5) managed by process 77 "
        "on node 10.0.0.2\n"
    )
    (found,) = told.communicators
    assert found.key == CommunicatorKey(HASH)
    assert found.launched == (
        Launched("AllReduce", 6649, 1, (5,)),
        Launched("AllReduce", 6650, 7, (0, 1, 2, 3, 4, 6, 7)),
    )
    assert found.ranks[5] == Rank(5, "10.0.0.2", 77, 5, {"AllReduce": 6649})
    assert found.ranks[6] == Rank(6, counts={"AllReduce": 6650})


def test_before_2_26_all_kinds_are_counted_as_one() -> None:
    told = mismatch(
        "  Communicator ranks have different collective operation counts\n"
        "  6 ranks have launched up to operation 9\n"
        "  2 ranks have launched up to operation 8\n"
        "  Rank 1 -- GPU 1 managed by process 11 on node 10.0.0.1\n"
        "  Rank 2 -- [process information not found]\n"
    )
    (found,) = told.communicators
    assert [group[:3] for group in found.launched] == [("collective", 8, 2), ("collective", 9, 6)]
    assert [found.ranks[n].pid for n in (0, 1, 2)] == [None, 11, None]


def test_ranks_that_launched_nothing() -> None:
    told = mismatch(
        "  Communicator ranks have different AllGather operation counts\n"
        "  3 ranks have launched up to operation 4\n"
        "  Rank 3 has not launched any operations -- GPU 3 managed by process 13 on node h\n\n"
        "  Communicator ranks have different Broadcast operation counts\n"
        "  3 ranks have not launched any operations\n"
        "  Rank 0 has launched up to operation 1 -- GPU 0 managed by process 10 on node h\n",
        size=4,
    )
    (found,) = told.communicators
    assert found.launched == (
        Launched("AllGather", 0, 1, (3,)),
        Launched("AllGather", 4, 3, (0, 1, 2)),
        Launched("Broadcast", 0, 3, (1, 2, 3)),
        Launched("Broadcast", 1, 1, (0,)),
    )
    assert found.ranks[3].counts == {"AllGather": 0, "Broadcast": 0}


def test_halves_are_told_without_names() -> None:
    told = mismatch(
        "  Communicator ranks have different AllReduce operation counts\n"
        "  4 ranks have launched up to operation 3\n"
        "  4 ranks have launched up to operation 2\n"
    )
    (found,) = told.communicators
    assert found.launched == (Launched("AllReduce", 2, 4, ()), Launched("AllReduce", 3, 4, ()))
    assert found.ranks == ()


INCOMPLETE = "    0         1         2       3-4         8         7   RUNNING  INCOMPLETE\n"


@pytest.mark.parametrize(
    "headline",
    [
        "INCOMPLETE\n  Missing communicator data from 1 job process\n",
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n",
    ],
)
@pytest.mark.parametrize("by_process", [True, False], ids=["since 2.26", "before"])
def test_a_missing_rank(headline: str, by_process: bool) -> None:
    named = "  Rank 6 -- GPU 2 managed by process 88 on node 10.0.0.2\n"
    old = "  The missing rank: 6\n"
    told = parsed(
        status(
            INCOMPLETE,
            errors=f"{headline}  Process 88 on node 10.0.0.2 managing GPU 2\n\n"
            f"#0-0 ({HASH}) INCOMPLETE\n  Missing communicator data from 1 rank\n"
            f"{named if by_process else old}\n",
            warnings="TIMEOUT\n  Encountered 2 communication timeouts while gathering "
            "communicator data\n\n",
        )
    )
    place = ("10.0.0.2", 88, 2) if by_process else ("", None, None)
    assert told.communicators[0].missing == (MissingRank(6, RankLoss.UNRESPONSIVE, *place),)
    assert told.silent == (RankProcess("10.0.0.2", 88),)


def test_many_missing_ranks_and_processes() -> None:
    told = parsed(
        status(
            INCOMPLETE,
            errors="INCOMPLETE\n  Missing communicator data from 2 job processes\n"
            "  Process 1 on node a managing GPUs 0,1 (NVML 2,3)\n"
            "  [could not find information on 1 process]\n\n"
            f"#0-0 ({HASH}) INCOMPLETE\n  Missing communicator data from 3 ranks\n"
            "  The missing ranks: 1,2,5\n\n",
        )
    )
    (found,) = told.communicators
    assert [rank.rank for rank in found.missing] == [1, 2, 5]
    assert told.silent == (RankProcess("a", 1),)


@pytest.mark.parametrize(
    "left",
    [
        "  5 ranks have status UNKNOWN\n  The unknown ranks: 1,2,3,5,7\n",
        "  5 ranks have status NOCOMM\n"
        + "".join(
            f"  Rank {n} -- GPU {n} managed by process {n + 10} on node h\n"
            for n in (1, 2, 3, 5, 7)
        ),
    ],
    ids=["before 2.26", "since"],
)
def test_a_communicator_that_is_torn_down(left: str) -> None:
    told = mismatch(
        f"  Communicator ranks have different status\n{left}"
        "  2 ranks have status RUNNING\n"
        "  Rank 0 -- GPU 0 managed by process 10 on node h\n"
        "  Rank 4 -- GPU 4 managed by process 14 on node h\n"
        "  Rank 6 has status FINALIZE -- GPU 6 managed by process 16 on node h\n"
    )
    (found,) = told.communicators
    assert [(r.rank, r.loss) for r in found.missing] == [
        (n, RankLoss.LEFT) for n in (1, 2, 3, 5, 7)
    ]
    assert [(r.rank, r.pid) for r in found.ranks] == [(0, 10), (4, 14), (6, 16)]


@pytest.mark.parametrize("place", ["", " -- GPU 3 managed by process 13 on node h"])
def test_one_rank_that_has_left(place: str) -> None:
    word = "NOCOMM" if place else "UNKNOWN"
    told = mismatch(
        "  Communicator ranks have different status\n  7 ranks have status FINALIZE\n"
        f"  Rank 3 has status {word}{place}\n"
    )
    (found,) = told.communicators
    assert [(r.rank, r.loss, r.pid) for r in found.missing] == [
        (3, RankLoss.LEFT, 13 if place else None)
    ]


def test_errors_of_ranks_tell_where_these_are() -> None:
    rows = "    0         1         1         4         4         4   RUNNING  ERROR,MISMATCH\n"
    told = parsed(
        status(
            rows,
            errors=f"#0-0 ({HASH}) ERROR\n  Initialization error on 1 rank\n"
            "  Rank 0 reported Unhandled CUDA error -- GPU 0 managed by process 10 on node h\n"
            "  Asynchronous errors on 2 ranks\n  2 ranks reported Remote process error\n"
            "  Rank 1 -- GPU 1 managed by process 11 on node h\n"
            "  Rank 2 -- [process information not found]\n\n",
            warnings=f"#0-0 ({HASH}) MISMATCH\n"
            "  Communicator ranks have different Reduce operation counts\n"
            "  3 ranks have launched up to operation 5\n"
            "  Rank 1 has launched up to operation 4 -- GPU 1 managed by process 11 on node h\n\n",
        )
    )
    (found,) = told.communicators
    assert [(r.rank, r.pid) for r in found.ranks] == [(0, 10), (1, 11), (2, None), (3, None)]
    assert [r.counts["Reduce"] for r in found.ranks] == [5, 4, 5, 5]


UNEVEN = {
    "processes": (
        "  Nodes  Processes         GPUs\n          per node  per process\n"
        "      3          4            1\n      1          3            1\n\n"
        "  Nodes  Processes         GPUs\n(total)    (total)      (total)\n"
        "      4         15           15\n\nThe outlier node:\n  Node h running processes 1,2,3\n"
    ),
    "GPUs": (
        "  Nodes  Processes\n          per node\n      4          4\n\n"
        "         Processes         GPUs\n                    per process\n"
        "                15            1\n\n"
        "  Nodes  Processes         GPUs\n(total)    (total)      (total)\n"
        "      4         15           15\n"
    ),
}


@pytest.mark.parametrize("summary", UNEVEN.values(), ids=UNEVEN.keys())
def test_a_job_whose_nodes_differ(summary: str) -> None:
    told = parsed(status(summary=summary))
    assert (told.nodes, told.processes, told.gpus) == (4, 15, 15)


def test_a_job_without_communicators() -> None:
    old = status(rows="No communicator data collected!\n")
    assert parsed(old) == parsed(old.replace(TABLE, ""))


WHOLE = status(INCOMPLETE, errors=f"#0-0 ({HASH}) INCOMPLETE\n  The missing rank: 6\n\n")


@pytest.mark.parametrize("end", [0, 100, WHOLE.index("Errors"), WHOLE.index("Warnings"), -2])
def test_what_is_cut_off_is_no_answer(end: int) -> None:
    answer = parse_text(WHOLE[:end])
    assert isinstance(answer, Unanswered)
    assert answer.failure is RasFailure.PROTOCOL


def test_lines_that_mean_nothing_are_passed_over() -> None:
    answer = parse_text(WHOLE.replace("Warnings\n", "Advice\nEat more fruit.\nWarnings\n"))
    assert isinstance(answer, NcclAnswer)
    assert answer.communicators[0].missing[0].rank == 6


def test_a_size_that_cannot_be_is_not_filled_with_ranks() -> None:
    size = 10**17
    told = parse_text(
        status(
            f"    0         1         1         1  {size}  1   RUNNING  MISMATCH\n",
            warnings=f"#0-0 ({HASH}) MISMATCH\n"
            "  Communicator ranks have different AllReduce operation counts\n"
            f"  {size} ranks have launched up to operation 3\n",
        )
    )
    assert isinstance(told, NcclAnswer)
    assert told.communicators[0].ranks == ()
