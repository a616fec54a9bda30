"""Price follows work: costly reads are rare while nothing happens, and run at once when it does."""

from agent.sources import activity, nvlink
from tests.support.machines import AgentBench, simulated


def readings(bench: AgentBench, metric: object, seconds: int) -> int:
    """Return the number of times that the first GPU's value of a metric was read within so many
    seconds."""
    seen = set()
    for _ in range(seconds):
        bench.run(1)
        point = bench.samples.point(metric, *min(bench.samples.all(metric)))  # type: ignore[arg-type]
        assert point is not None
        seen.add(point[0])
    return len(seen)


def test_an_idle_gpu_is_hardly_disturbed() -> None:
    bench = simulated("dgx-h100:idle", gpus=2).run(12)
    assert readings(bench, nvlink.TRANSMITTED, 20) <= 3
    assert readings(bench, activity.ACTIVITY, 20) <= 5


def test_nvlink_is_read_each_second_as_soon_as_it_fills() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(23)
    bench.machine.set_scenario("nvlink-saturated")
    bench.run(4)
    assert readings(bench, nvlink.TRANSMITTED, 5) == 5


def test_a_process_that_arrives_is_seen_at_once() -> None:
    bench = simulated("dgx-h100:idle", gpus=2).run(23)
    bench.machine.set_scenario("training")
    bench.run(3)
    assert readings(bench, activity.ACTIVITY, 5) == 5
