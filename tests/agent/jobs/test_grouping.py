"""Grouping of processes into jobs."""

import pytest

from agent.jobs.grouping import JobMember, groups
from agent.jobs.job import GroupedBy
from agent.model import GpuKey

GPUS = [GpuKey(index, f"GPU-{index}") for index in range(4)]


def member(gpu: int, pid: int, key: str, owner: str = "ada") -> JobMember:
    return JobMember(GPUS[gpu], pid, pid, key, owner)


ONE = [member(0, 10, "process 1 5"), member(1, 11, "process 1 5")]
TWO = [member(2, 20, "slurm 7"), member(3, 21, "slurm 7")]


def test_a_key_joins_and_another_does_not() -> None:
    found = groups([*TWO, *ONE])
    assert [(group.grouped_by, group.gpus) for group in found] == [
        (GroupedBy.ANCESTOR, (GPUS[0], GPUS[1])),
        (GroupedBy.SLURM, (GPUS[2], GPUS[3])),
    ]


@pytest.mark.parametrize(
    ("ranks", "grouped_by", "pids"),
    [
        ([], [GroupedBy.ANCESTOR, GroupedBy.SLURM], [{10, 11}, {20, 21}]),
        ([{10, 11}], [GroupedBy.NCCL, GroupedBy.SLURM], [{10, 11}, {20, 21}]),
        ([{10, 11, 20, 21}], [GroupedBy.NCCL], [{10, 11, 20, 21}]),
        ([{11, 20}], [GroupedBy.NCCL], [{10, 11, 20, 21}]),
        ([{99}, set()], [GroupedBy.ANCESTOR, GroupedBy.SLURM], [{10, 11}, {20, 21}]),
    ],
)
def test_nccls_word_comes_first_and_only_joins(
    ranks: list[set[int]], grouped_by: list[GroupedBy], pids: list[set[int]]
) -> None:
    found = groups([*ONE, *TWO], ranks)
    assert [group.grouped_by for group in found] == grouped_by
    assert [set(group.pids) for group in found] == pids


def test_gpus_in_lock_step_are_one_job() -> None:
    hidden = [member(gpu, 30 + gpu, f"process {30 + gpu}") for gpu in range(3)]
    found = groups(hidden, lock_step=[{GPUS[0], GPUS[2]}])
    assert [(group.grouped_by, len(group.members)) for group in found] == [
        (GroupedBy.LOCK_STEP, 2),
        (GroupedBy.ALONE, 1),
    ]


def test_a_process_on_several_gpus_is_one_job() -> None:
    (group,) = groups([member(0, 10, "a"), member(1, 10, "a")], [{10}])
    assert group.gpus == (GPUS[0], GPUS[1])
    assert group.grouped_by is GroupedBy.NCCL


@pytest.mark.parametrize("owners", [("ada", "eve"), ("", "")])
def test_nothing_joins_processes_of_two_owners(owners: tuple[str, str]) -> None:
    """Nor those whose owners are not known."""
    two = [member(gpu, 40 + gpu, f"process {40 + gpu}", owners[gpu]) for gpu in range(2)]
    found = groups(two, [{40, 41}], [{GPUS[0], GPUS[1]}])
    assert [set(group.pids) for group in found] == [{40}, {41}]


def test_another_owner_in_between_hides_no_job() -> None:
    mine = [member(gpu, 50 + gpu, f"process {50 + gpu}") for gpu in (0, 2)]
    found = groups([*mine, member(1, 51, "process 51", "eve")], [{50, 51, 52}])
    assert [set(group.pids) for group in found] == [{50, 52}, {51}]
