"""Simulated fleets: who is in them, and what each node makes its own."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from agent.errors import BadInput
from agent.model import Sample, counter, gauge
from agent.simulator.fleet import LIFETIME, RACK, FleetMachine, NodePlan, Phase, SimulatedNode, plan
from agent.simulator.scenarios import SLOW_NODE, WAITS_FOR_NODE
from agent.sources import gpu, infiniband, power, temperature
from agent.sources.workload import JOB_INFO

SECONDS = counter("dgx_test_seconds_total", "Seconds.", "a test", ("gpu", "uuid"))
EVENTS = counter("dgx_test_errors_total", "Errors.", "a test", ())
LEVEL = gauge("dgx_test_ratio", "A share.", "a test", ())
FIRST = ("0", "GPU-a")


@pytest.mark.parametrize("number", [4, 8, 16, 124, 1000])
def test_every_node_has_a_name_an_address_and_a_rack_of_its_own(number: int) -> None:
    nodes = plan(number)
    assert len({node.name for node in nodes}) == len({node.address for node in nodes}) == number
    assert max(Counter(node.rack for node in nodes).values()) == RACK
    assert plan(number) == nodes


@pytest.mark.parametrize("number", [8, 16, 124])
def test_one_node_of_the_largest_job_is_slow(number: int) -> None:
    joint = [node for node in plan(number) if node.job and node.job.job_id == "4711"]
    kinds = Counter(node.phases[0].scenario for node in joint)
    assert kinds == {SLOW_NODE: 1, WAITS_FOR_NODE: min(16, number // 2) - 1}


def test_a_rack_without_power_is_dark_together_and_comes_back() -> None:
    nodes = plan(124)
    dark = {node.rack for node in nodes if not node.answers(400.0)}
    assert dark == {"r31"}
    assert [n for n in nodes if not n.answers(1000.0)] == [n for n in nodes if n.removed < 1000.0]


@pytest.mark.parametrize("number", [0, 3, 1001])
def test_a_fleet_that_cannot_be_is_refused(number: int) -> None:
    with pytest.raises(BadInput, match="4 to 1000 nodes"):
        plan(number)


@pytest.fixture
def one() -> NodePlan:
    return plan(16)[0]


def shown(
    node: SimulatedNode, scenario: str, found: Iterable[Sample], now: float = 0.0
) -> list[Sample]:
    return list(node.samples(scenario, found, now))


def test_a_counter_goes_on_when_the_node_becomes_like_another_machine(one: NodePlan) -> None:
    node = SimulatedNode(one, 0.0, JOB_INFO)

    def counted(scenario: str, value: float) -> float:
        return shown(node, scenario, [Sample(SECONDS, FIRST, value)])[0].value

    assert [counted("a", value) for value in (500.5, 501.5, 503.5)] == [0.0, 1.0, 3.0]
    assert [counted("b", value) for value in (7.5, 8.5)] == [3.0, 4.0]
    assert [counted("a", value) for value in (900.5, 901.5)] == [4.0, 5.0]


def test_identities_watts_and_degrees_differ_by_node_and_shares_of_time_do_not() -> None:
    found = [
        Sample(power.POWER, FIRST, 250.0),
        Sample(temperature.TEMPERATURE, FIRST, 60.0),
        Sample(LEVEL, (), 0.5),
    ]
    several = [shown(SimulatedNode(node, 0.0, JOB_INFO), "a", found) for node in plan(16)]
    uuids = {samples[0].labels for samples in several}
    watts = {samples[0].value for samples in several}
    assert len(uuids) == len(watts) == 16
    assert all(242.0 < value < 258.0 for value in watts)
    assert len({samples[1].value for samples in several}) > 1
    assert {samples[2].value for samples in several} == {0.5}


def test_the_job_of_a_node_stands_on_each_of_its_gpus(one: NodePlan) -> None:
    known = Sample(gpu.INFO, (*FIRST, *("x" for _ in gpu.INFO.labels[2:])), 1.0)
    theirs = Sample(JOB_INFO, (*FIRST, *("" for _ in JOB_INFO.labels[2:])), 1.0)
    samples = shown(SimulatedNode(one, 0.0, JOB_INFO), "a", [known, theirs])
    (mine,) = (sample for sample in samples if sample.metric is JOB_INFO)
    assert dict(zip(JOB_INFO.labels, mine.labels, strict=True))["job_id"] == "4711"
    assert mine.labels[:2] == samples[0].labels[:2]


def test_errors_of_its_own_are_whole_and_those_of_others_have_none(one: NodePlan) -> None:
    labels = ("mlx5_1", "1", "symbol_error")
    found = [Sample(infiniband.ERRORS, labels, 0.0), Sample(EVENTS, (), 3.0)]
    ill = SimulatedNode(replace(one, symbol_errors=40.0), 0.0, JOB_INFO)
    assert [s.value for s in shown(ill, "a", found, 1800.0)] == [20.0, 0.0]
    assert [s.value for s in shown(SimulatedNode(one, 0.0, JOB_INFO), "a", found, 1800.0)] == [
        0.0,
        0.0,
    ]


def test_phases_follow_one_another_and_begin_again(one: NodePlan) -> None:
    node = replace(one, phases=(Phase("a", 10.0), Phase("b", 5.0)))
    assert [node.scenario(now) for now in (0.0, 9.0, 10.0, 14.0, 15.0)] == ["a", "a", "b", "b", "a"]


def test_a_machine_repeats_its_last_minute_and_its_counters_go_on() -> None:
    """An agent that ticks once a second from 0 on, and what it counts: three a second."""
    machine = FleetMachine()
    for tick in range(LIFETIME):
        samples = [Sample(SECONDS, FIRST, 3.0 * tick), Sample(LEVEL, (), float(tick % 60))]
        machine.take(samples, float(tick))
    end = LIFETIME - 1

    def shown(now: float) -> list[float]:
        return [sample.value for sample in machine.samples(now)]

    assert shown(end) == [3.0 * end, end % 60]
    assert [shown(end + n)[0] for n in (5, 60, 125, 600)] == [
        pytest.approx(3.0 * (end + n)) for n in (5, 60, 125, 600)
    ]
    assert shown(end + 7)[1] == shown(end + 67)[1]
