"""Grouping of processes into jobs, and GPUs that take the same steps."""

from collections.abc import Callable

import pytest

from agent.jobs.grouping import COMPARED, JobMember, LockSteps, SentBytes, groups
from agent.jobs.job import GroupedBy
from agent.model import GpuKey

GPUS = [GpuKey(index, f"GPU-{index}") for index in range(4)]


def member(gpu: int, pid: int, key: str, owner: str = "ada") -> JobMember:
    return JobMember(GPUS[gpu], pid, key, owner)


ONE = [member(0, 10, "process 1 5"), member(1, 11, "process 1 5")]
TWO = [member(2, 20, "slurm 7"), member(3, 21, "slurm 7")]


def test_a_key_joins_and_another_does_not() -> None:
    found = groups([*TWO, *ONE])
    assert [(group.grouped_by, group.gpus) for group in found] == [
        (GroupedBy.ANCESTOR, (GPUS[0], GPUS[1])),
        (GroupedBy.SLURM, (GPUS[2], GPUS[3])),
    ]


def test_gpus_in_lock_step_are_one_job() -> None:
    hidden = [member(gpu, 30 + gpu, f"process {30 + gpu}") for gpu in range(3)]
    found = groups(hidden, lock_step=[{GPUS[0], GPUS[2]}])
    assert [(group.grouped_by, len(group.members)) for group in found] == [
        (GroupedBy.LOCK_STEP, 2),
        (GroupedBy.ALONE, 1),
    ]


def test_a_process_on_several_gpus_is_one_job() -> None:
    (group,) = groups([member(0, 10, "a"), member(1, 10, "a")])
    assert group.gpus == (GPUS[0], GPUS[1])
    assert group.grouped_by is GroupedBy.ALONE


@pytest.mark.parametrize("owners", [("ada", "eve"), ("", "")])
def test_nothing_joins_processes_of_two_owners(owners: tuple[str, str]) -> None:
    """Nor those whose owners are not known."""
    two = [member(gpu, 40 + gpu, f"process {40 + gpu}", owners[gpu]) for gpu in range(2)]
    found = groups(two, [{GPUS[0], GPUS[1]}])
    assert [set(group.pids) for group in found] == [{40}, {41}]


def test_another_owner_in_between_hides_no_job() -> None:
    mine = [member(gpu, 50 + gpu, f"process {50 + gpu}") for gpu in (0, 2)]
    found = groups([*mine, member(1, 51, "process 51", "eve")], [set(GPUS)])
    assert [set(group.pids) for group in found] == [{50, 52}, {51}]


FIRST, SECOND = GpuKey(0, "GPU-0"), GpuKey(1, "GPU-1")
RATE = 3e10
Sent = Callable[[float], float]


def same(at: float) -> float:
    return RATE * at


def joined(
    one: Sent, other: Sent, *, seconds: int = 180, steps: LockSteps | None = None, apart: float = 0
) -> bool:
    """Return whether both are of one job in the end, by a reading every ten seconds."""
    steps = steps or LockSteps()
    found: list[frozenset[GpuKey]] = []
    for at in range(0, seconds + 1, 10):
        now = {
            FIRST: SentBytes({10}, at, one(at)),
            SECOND: SentBytes({20}, at + apart, other(at + apart)),
        }
        found = list(steps.take(now))
    return found == [frozenset((FIRST, SECOND))]


def test_ranks_send_the_same() -> None:
    assert joined(same, same)
    assert joined(same, lambda at: 5e12 + same(at), apart=0.05), "counted since the machine began"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (same, lambda at: 1.001 * RATE * at),  # the same model twice, on GPUs with other clocks
        (lambda _: 0.0, lambda _: 0.0),  # nothing is sent
        (same, lambda _: 0.0),
    ],
)
def test_jobs_apart_stay_apart(one: Sent, other: Sent) -> None:
    assert not joined(one, other)


def test_minutes_are_needed() -> None:
    assert not joined(same, same, seconds=int(COMPARED) - 10)


def test_readings_of_different_ticks_are_not_compared() -> None:
    steps = LockSteps()
    for at in range(10, 190, 5):  # each is read every ten seconds, one 5 s after the other
        one, other = at // 10 * 10, (at + 5) // 10 * 10 - 5
        now = {FIRST: SentBytes({10}, one, same(one)), SECOND: SentBytes({20}, other, same(other))}
        assert list(steps.take(now)) == []


def test_a_job_that_hangs_is_still_one() -> None:
    assert joined(lambda at: same(min(at, 200)), lambda at: same(min(at, 200)), seconds=900)


def test_another_process_is_another_job() -> None:
    steps = LockSteps()
    assert joined(same, same, steps=steps)
    now = {FIRST: SentBytes({10}, 190, same(190)), SECOND: SentBytes({21}, 190, same(190))}
    assert list(steps.take(now)) == []
