"""Any mix of faults leaves the rest intact, and what is rendered parses back."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.catalogue import METRICS
from agent.sources import power
from agent.sources.agent_health import SOURCE_UP
from tests.support.machine_controls import reload_driver
from tests.support.machines import AgentBench, simulated

GPUS = 4
CODES = st.sampled_from([2, 3, 4, 6, 10, 13, 15, 999])
FUNCTIONS = st.sampled_from(
    [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlGpmSampleGet",
        "nvmlGpmMetricsGet",
    ]
)
FAULTS = st.lists(st.tuples(FUNCTIONS, CODES, st.integers(0, GPUS - 2)), max_size=5)
SYSTEMS = st.sampled_from(["dgx-station-v100:training", "dgx-h100:training"])


@settings(max_examples=6)
@given(SYSTEMS, FAULTS)
def test_faults_cost_only_their_own_gpu(system: str, faults: list[tuple[str, int, int]]) -> None:
    bench = simulated(system, gpus=GPUS).run(2)
    for function, code, index in faults:
        bench.machine.driver.fail(function, code, index)
    bench.run(6)
    healthy = str(GPUS - 1)
    whole = simulated(system, gpus=GPUS).run(8)
    assert values_of(bench, healthy) == values_of(whole, healthy)


def values_of(bench: AgentBench, index: str) -> dict[str, int]:
    """Return the number of samples of each metric that a GPU has."""
    found: dict[str, int] = {}
    samples = bench.samples  # built again each time it is asked for
    for metric in METRICS.values():
        if "gpu" in metric.labels:
            found[metric.name] = len(samples.where(metric, gpu=index))
    return found


def test_a_driver_reload_is_survived_without_a_spike() -> None:
    bench = simulated("dgx-1-v100:training").run(5)
    before = bench.samples.all(power.ENERGY).copy()
    reload_driver(bench.machine)
    bench.run(15)
    after = bench.samples.all(power.ENERGY)
    assert after.keys() == before.keys()
    assert all(after[key] < 15 * 400 for key in after)
    assert all(bench.samples.all(SOURCE_UP).values())
