"""GPUs that take the same steps, and those of two jobs that only look like it."""

from collections.abc import Callable

import pytest

from agent.jobs.grouping import COMPARED, LockSteps, SentBytes
from agent.model import GpuKey

ONE, OTHER = GpuKey(0, "GPU-0"), GpuKey(1, "GPU-1")
RATE = 3e10
Sent = Callable[[float], float]


def same(at: float) -> float:
    return RATE * at


def joined(
    one: Sent, other: Sent, *, seconds: int = 180, steps: LockSteps | None = None, apart: float = 0
) -> bool:
    """Return whether both are of one job in the end, by a reading each ten seconds."""
    steps = steps or LockSteps()
    found: list[frozenset[GpuKey]] = []
    for at in range(0, seconds + 1, 10):
        now = {
            ONE: SentBytes({10}, at, one(at)),
            OTHER: SentBytes({20}, at + apart, other(at + apart)),
        }
        found = list(steps.take(now))
    return found == [frozenset((ONE, OTHER))]


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
        now = {ONE: SentBytes({10}, one, same(one)), OTHER: SentBytes({20}, other, same(other))}
        assert list(steps.take(now)) == []


def test_a_job_that_hangs_is_still_one() -> None:
    assert joined(lambda at: same(min(at, 200)), lambda at: same(min(at, 200)), seconds=900)


def test_another_process_is_another_job() -> None:
    steps = LockSteps()
    assert joined(same, same, steps=steps)
    now = {ONE: SentBytes({10}, 190, same(190)), OTHER: SentBytes({21}, 190, same(190))}
    assert list(steps.take(now)) == []
