"""Impossible answers of a driver: none of them is exported, counted, judged or alerted on."""

import math
import re
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.catalogue import METRICS
from agent.diagnosis.accounting import STATE_SECONDS
from agent.faults.findings import Search
from agent.model import Kind, Reason, Severity
from agent.ranges import ANY
from agent.sources import power, temperature
from agent.sources.table import GPU_SOURCES, declared
from exporters.default_set import DefaultSet
from tests.support.alert_replay import SCALE, Replay, Series, faster, scrape, used
from tests.support.machines import AgentBench, simulated
from tests.support.nightly import NIGHTLY, shortly
from tests.support.odd_answers import EVERYTHING, KINDS, OddAnswers, strike

BEFORE, STRUCK, AFTER = 3, 62, 12
LOOK = 3  # seconds between two looks for findings
WHOLE = BEFORE + STRUCK + AFTER
SYSTEMS = ("dgx-h100:training", "dgx-a100:training", "l40s:training")


class Played(NamedTuple):
    """A run: each counter's falls, values beyond their range, critical findings, and in the end the
    seconds of the second GPU by state."""

    falls: list[str]
    odd: set[str]
    critical: set[str]
    series: Series
    shares: dict[tuple[str, ...], float]


def critical(bench: AgentBench) -> set[str]:
    wrong = Search().findings(bench.latest)
    return {f.kind for f in wrong if f.severity is Severity.CRITICAL}


@cache
def played(system: str, values: tuple[object, ...] = (), share: float = 0.15) -> Played:
    """A machine of two GPUs or more; the first one answers oddly for a while, where values are
    given."""
    bench = simulated(system, gpus=2)
    found, default = Played([], set(), set(), {"up": []}, {}), DefaultSet()
    before: dict[tuple[str, tuple[str, ...]], float] = {}
    for second in range(WHOLE):
        if second in (BEFORE, BEFORE + STRUCK) and values:
            odd = OddAnswers(values, share=share) if second == BEFORE else None
            strike(bench.machine, odd)
        scrape(bench.run(1).latest, found.series, used(), default)
        latest = bench.latest
        for metric, labels, value in latest.samples(latest.at):
            low, high = metric.possible
            if not low <= value <= high or math.isnan(value):
                found.odd.add(f"{metric.name} {value}")
            if metric.kind is Kind.COUNTER:
                key = metric.name, labels
                if value < before.get(key, value):
                    found.falls.append(f"{metric.name}{labels}: {before[key]} to {value}")
                before[key] = value
        if latest.tick % LOOK == 0:
            found.critical.update(critical(bench))
    spent = bench.samples.where(STATE_SECONDS, gpu="1")
    found.shares.update({key[2:]: value for key, value in spent.items()})
    return found


def do_no_harm(found: Played) -> bool:
    assert (found.falls, found.odd, found.critical) == ([], set(), set())
    return True


@pytest.mark.parametrize(
    ("system", "kind"),
    [
        *((system, EVERYTHING) for system in SYSTEMS),
        *(pytest.param(SYSTEMS[0], kind, marks=NIGHTLY) for kind in KINDS if kind != EVERYTHING),
    ],
)
def test_odd_answers_of_every_call_do_no_harm(system: str, kind: str) -> None:
    assert do_no_harm(played(system, KINDS[kind]))


POSSIBLE = (0, 1, 3, 100, 255, 82_505)
"""Possible values of some readings; MIG is on at 1, and a GPU of 100 degrees is too hot."""


@pytest.mark.parametrize(
    ("system", "values"),
    [
        pytest.param(system, values, marks=[] if at == number else NIGHTLY)
        for at, values in enumerate([(1,), (100,), POSSIBLE])
        for number, system in enumerate(SYSTEMS)
    ],
)
def test_odd_answers_that_could_be_do_no_harm_once(system: str, values: tuple[int, ...]) -> None:
    assert do_no_harm(played(system, values))


FIRED = 'group by (alertname) (last_over_time(ALERTS{alertstate="firing"}[10m]))'


def fired(system: str, folder: Path, values: tuple[object, ...] = (), share: float = 0) -> set[str]:
    """The alerts that fired at any time, by the rules as Prometheus evaluates them."""
    series = played(system, values, share).series
    said = Replay(folder, faster(SCALE)).answer(series, FIRED, WHOLE - 1)
    return set(re.findall(r'alertname=\\?"(\w+)\\?"', said))


@pytest.mark.promtool
@pytest.mark.parametrize("system", shortly(SYSTEMS, SYSTEMS[:1]))
def test_no_rule_fires_that_would_not_fire_without_odd_answers(
    system: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = fired(system, tmp_path)
    assert "DgxWatchdog" in whole
    rare: tuple[tuple[int, ...], ...] = (POSSIBLE,)  # a second of 1 % is one that is lost
    if request.config.getoption("--nightly"):
        rare += (1,), (100,)
    for values, share in ((KINDS[EVERYTHING], 0.15), *((one, 0.05) for one in rare)):
        assert fired(system, tmp_path, values, share) <= whole, values


IMPOSSIBLE = tuple(values[0] for values in KINDS.values())
"""Impossible values of any reading. 82505, say, is a power of 82 W, for which a peer rightly
waits."""


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=NIGHTLY) for seed in range(2, 9))])
def test_any_mix_of_them_leaves_the_other_gpu_its_shares(seed: int) -> None:
    random = Random(seed)
    system, share = SYSTEMS[(seed - 1) % len(SYSTEMS)], random.uniform(0.02, 0.15)
    found, whole = played(system, tuple(random.sample(IMPOSSIBLE, 4)), share), played(system)
    assert do_no_harm(found)
    assert found.shares == pytest.approx(whole.shares, abs=1.0)


def test_every_metric_of_nvml_declares_its_values() -> None:
    without = [
        metric.name
        for metric in declared(GPU_SOURCES)
        if metric.possible == ANY and metric.kind is not Kind.COUNTER
    ]
    assert without == []


def test_every_counter_of_bytes_and_seconds_declares_its_fastest_growth() -> None:
    counted = ("_bytes_total", "_ticks_total", "_joules_total")
    without = [
        name
        for name, metric in METRICS.items()
        if name.endswith(counted) and metric.fastest is None
    ]
    assert without == []


def test_an_odd_value_is_absent_with_the_value() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(2)
    strike(bench.machine, OddAnswers((644_245_923,), share=1.0))
    bench.run(3)
    (absence,) = bench.absent(temperature.TEMPERATURE)
    assert absence.reason is Reason.IMPLAUSIBLE
    assert "644245923" in absence.detail
    assert len(bench.samples.where(power.POWER, gpu="1")) == 1


GPUS = 4
CODES = st.sampled_from([2, 3, 4, 6, 10, 13, 15, 999])
FUNCTIONS = st.sampled_from(
    [
        *("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo"),
        *("nvmlDeviceGetFieldValues", "nvmlDeviceGetSamples", "nvmlDeviceGetTemperature"),
        *("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetNvLinkState"),
        *("nvmlDeviceGetTotalEccErrors", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"),
    ]
)
FAULTS = st.lists(st.tuples(FUNCTIONS, CODES, st.integers(0, GPUS - 2)), max_size=5)


@settings(max_examples=6)
@given(st.sampled_from(["dgx-station-v100:training", "dgx-h100:training"]), FAULTS)
def test_faults_cost_only_their_own_gpu(system: str, faults: list[tuple[str, int, int]]) -> None:
    bench = simulated(system, gpus=GPUS).run(2)
    for function, code, index in faults:
        bench.machine.driver.fail(function, code, index)
    bench.run(6)
    healthy = str(GPUS - 1)
    assert values_of(bench, healthy) == values_of(without_faults(system), healthy)


@cache
def without_faults(system: str) -> AgentBench:
    return simulated(system, gpus=GPUS).run(8)


def values_of(bench: AgentBench, index: str) -> dict[str, int]:
    """Return the number of samples of each metric that a GPU has."""
    found: dict[str, int] = {}
    samples = bench.samples  # built again each time it is asked for
    for metric in METRICS.values():
        if "gpu" in metric.labels:
            found[metric.name] = len(samples.where(metric, gpu=index))
    return found
