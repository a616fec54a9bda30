"""Record of one job: on whose steps its GPUs agree, and since when it is slower."""

import pytest

from agent.diagnosis.job_record import JobRecord
from agent.diagnosis.pulses import GpuPulse, JobPulse, agreed
from agent.jobs.grouping import JobGroup, JobMember
from agent.jobs.job import GroupedBy
from agent.jobs.pulse import PulseReading
from agent.model import GpuKey, Snapshot
from agent.series import SampleStore

GPUS = [GpuKey(index, f"GPU-{index}") for index in range(2)]


def record() -> JobRecord:
    members = tuple(JobMember(gpu, 10 + gpu.index, "job") for gpu in GPUS)
    return JobRecord("1", JobGroup(members, GroupedBy.ANCESTOR), wall=0.0, began=0.0)


def pulse(step: float | None) -> GpuPulse:
    return GpuPulse(reading=PulseReading(step, 0.7, None), occupied=True)


@pytest.mark.parametrize(
    ("mine", "theirs", "exchanges", "step"),
    [
        (pulse(0.25), pulse(0.25), True, 0.25),
        (pulse(0.25), pulse(None), True, 0.25),  # the other is always at work
        (pulse(0.25), pulse(None), False, 0.25),  # two jobs of one parent
        (pulse(0.25), pulse(0.5), True, None),
    ],
)
def test_gpus_that_exchange_data_must_agree_on_their_step(
    mine: GpuPulse, theirs: GpuPulse, exchanges: bool, step: float | None
) -> None:
    one = agreed({"GPU-0": mine, "GPU-1": theirs}, exchange=exchanges)
    assert one.step == step
    assert (step is None and exchanges) == bool(one.apart)


def test_steps_that_grow_little_by_little_are_slower_since_they_were_too_long() -> None:
    one = record()
    for second in range(1, 200):
        step = 0.2 if second < 120 else 0.2 * (1 + 0.001 * (second - 120))
        one.pulse = JobPulse(step, lag=8.0)
        one.take(Snapshot(second, second, second), SampleStore(), set(), {})
    assert one.slower is not None
    assert one.slower.since == pytest.approx(143, abs=2)
