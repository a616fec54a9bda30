"""The account of seconds: nothing invented, nothing counted twice, whatever happens or fails."""

import json
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from agent.diagnosis import accounting
from agent.diagnosis.division import TimeSplit, divide_second
from agent.diagnosis.evidence import Evidence
from agent.model import PAIRS, Reason
from agent.sources import activity
from agent.sources.agent_health import SOURCE_UP
from exporters.documents import document
from tests.support.machine_controls import cut_link, lose, restore, set_mig
from tests.support.machines import AgentBench, Moment, played, simulated
from tests.support.nightly import NIGHTLY, covering

CASES = tomllib.loads(Path(__file__).with_name("accounting.toml").read_text("utf-8"))

OTHERS = {"starved-pcie": "idle/none", "starved-peer": "starved/peer"}
"""State of the GPUs other than the first; the same if not given."""

SECONDS = {"held": 80}
"""A GPU is held after a minute at rest, and a new pair leads ten seconds later."""

LED_BY = 25
"""Seconds by which every other scenario's pair leads: traces of the start have left the window."""

SHOWN = ("dgx-h100", "dgx-a100")
"""One with GPM and one without."""

WITHOUT_GPM = ("checkpoint", "throttled", "infiniband-saturated")
"""Scenarios that the short form plays without GPM; other files read the same machines."""

SHARES = CASES["shares"]
"""Least and most of the seconds of GPU 0 in 100 s from the start, a load and its beginning
included: 39 % of exposed communication, a hang after 30 s, a rank 10 % late."""

STRAY = 0.10
"""Share of the seconds, at most, that may go to any pair that a scenario does not name."""


def verdicts(bench: AgentBench | Moment) -> dict[str, str]:
    """State and cause of each GPU by its index."""
    found = bench.samples.all(accounting.STATE)
    return {key[0]: f"{key[2]}/{key[3]}" for key, value in found.items() if value}


def seconds(bench: AgentBench | Moment, gpu: str = "0") -> dict[str, float]:
    """The account of one GPU."""
    found = bench.samples.where(accounting.STATE_SECONDS, gpu=gpu)
    return {f"{key[2]}/{key[3]}": value for key, value in found.items()}


def observed(bench: AgentBench | Moment, gpu: str = "0") -> float:
    return sum(seconds(bench, gpu).values())


@pytest.mark.parametrize(
    ("system", "scenario"),
    covering(
        one for group in CASES["judged"] for one in product(group["systems"], group["played"])
    ),
)
def test_each_scenario_is_judged_as_what_it_is(system: str, scenario: str) -> None:
    machine = played(f"{system}:{scenario}")
    first = {"starved-peer": "busy/none"}.get(scenario, CASES["expected"][scenario])
    others = OTHERS.get(scenario, first)
    found = verdicts(machine.at(SECONDS.get(scenario, LED_BY)))
    assert found == {gpu: first if gpu == "0" else others for gpu in found}


@pytest.mark.parametrize(
    ("system", "scenario"),
    [
        pytest.param(*case, marks=[] if case[0] == SHOWN[case[1] in WITHOUT_GPM] else NIGHTLY)
        for case in product(SHOWN, SHARES)
    ],
)
def test_each_scenario_has_its_shares(system: str, scenario: str) -> None:
    moment = played(f"{system}:{scenario}").at(101)
    whole = observed(moment)
    assert whole == pytest.approx(100.0)
    shares = {pair: spent / whole for pair, spent in seconds(moment).items()}
    for pair, (least, most) in SHARES[scenario].items():
        assert least <= shares[pair] <= most, shares
    lost = {p: s for p, s in shares.items() if p.split("/")[0] not in ("busy", "idle")}
    stray = {p: s for p, s in lost.items() if p not in SHARES[scenario] and s > STRAY}
    assert stray == {}


def test_every_pair_is_there_from_the_first_tick() -> None:
    moment = played("dgx-h100:training").at(1)
    assert set(seconds(moment).values()) == {0.0}
    assert len(seconds(moment)) == len(PAIRS) == 18
    assert len(moment.samples.where(accounting.STATE, gpu="1")) == 18


def test_the_account_grows_by_a_second_a_second() -> None:
    machine = played("dgx-h100:starved-cpu")
    moment = machine.at(31)
    assert observed(moment) == pytest.approx(30.0)
    account = seconds(moment)
    uuid = machine.bench.agent.gpus.inventory.gpus[0].uuid
    busy = moment.samples.value(activity.ACTIVE_SECONDS, "0", uuid) or 0.0
    assert account["busy/none"] == pytest.approx(busy, abs=0.3), "counters are true: no allowance"
    assert account["busy/none"] == pytest.approx(0.178 * 30, abs=1.0)


def test_a_missed_tick_is_made_up_for_and_a_gap_is_not() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(5)
    before = observed(bench)
    bench.clock.advance(2.0)  # two ticks late
    bench.run(1)
    assert observed(bench) == pytest.approx(before + 3.0)
    bench.clock.advance(59.0)
    bench.run(1)
    assert observed(bench) == pytest.approx(before + 3.0)
    uuid = bench.agent.gpus.inventory.gpus[0].uuid
    assert bench.samples.value(accounting.UNOBSERVED_SECONDS, "0", uuid) == pytest.approx(60.0)
    bench.run(10)
    assert observed(bench) == pytest.approx(before + 13.0)


def test_a_gpu_that_is_lost_and_returns_goes_on_with_its_account() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(10)
    lose(bench.machine, 1)
    bench.run(12)
    lost = bench.absent(accounting.STATE)
    assert [(a.labels[0], a.reason) for a in lost] == [("1", Reason.LOST)]
    during = observed(bench, "1")
    assert during <= 10.0
    assert observed(bench, "0") == pytest.approx(21.0)
    restore(bench.machine, 1)
    bench.run(30)
    after = observed(bench, "1")
    uuid = bench.agent.gpus.inventory.gpus[1].uuid
    missed = bench.samples.value(accounting.UNOBSERVED_SECONDS, "1", uuid)
    assert missed is not None
    assert during < after < 51.0
    assert after + missed == pytest.approx(51.0)
    assert verdicts(bench)["1"] == "busy/none"


def test_an_unknown_activity_is_no_verdict() -> None:
    bench = simulated("dgx-a100:training", gpus=2).run(5)
    set_mig(bench.machine, 0, on=True)
    bench.run(70)
    assert "0" not in verdicts(bench)
    assert verdicts(bench)["1"] == "busy/none"


def test_the_snapshot_has_the_verdict() -> None:
    snapshot = played("gtx-1080:starved-disk").at(LED_BY).snapshot
    shown = document(snapshot, snapshot.at)["gpus"][0]["verdict"]
    assert (shown["state"], shown["cause"], shown["quality"]) == ("starved", "disk", "nvml")
    json.dumps(shown)


def test_links_that_are_all_down_cost_no_verdict() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(5)
    for link in range(18):
        cut_link(bench.machine, 0, link)
    bench.run(70)
    assert set(verdicts(bench).values()) == {"busy/none"}
    assert observed(bench, "0") == pytest.approx(74.0, abs=1.1)
    assert observed(bench, "1") == pytest.approx(74.0, abs=1.1)


def test_a_rule_that_fails_on_one_gpu_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def divide(e: Evidence) -> TimeSplit:
        if e.gpu.index == 0:
            raise ZeroDivisionError("a rule")
        return divide_second(e)

    bench = simulated("dgx-h100:training", gpus=3).run(5)
    monkeypatch.setattr(accounting, "divide_second", divide)
    bench.run(10)
    assert set(verdicts(bench)) == {"1", "2"}
    failed = bench.absent(accounting.STATE)
    assert [(a.labels[0], a.reason) for a in failed] == [("0", Reason.FAILED)]
    assert "ZeroDivisionError" in failed[0].detail


def test_only_traffic_that_was_seen_is_remembered() -> None:
    bench = simulated("dgx-h100:held", gpus=1).run(20)
    accounts = bench.agent.diagnosis.accounts.values()
    assert {account.history.seen.nvlink_seen for account in accounts} == {False}


PARTS = {"paths": "bandwidth", "_groups": "jobs", "_pulses": "pulse", "jobs": "jobs"}


def broken(*_: object) -> Any:
    raise ZeroDivisionError("odd")


def up(bench: AgentBench) -> dict[str, float]:
    wanted = ("bandwidth", "pulse", "diagnosis", "jobs")
    return {name: bench.samples.value(SOURCE_UP, name) or 0.0 for name in wanted}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_ends_no_job_and_costs_no_verdict(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(20)
    analysis = bench.agent._analysis
    began = bench.jobs.running[0].receipt.began
    with monkeypatch.context() as patch:
        patch.setattr(type(getattr(analysis, part)), "take", broken)
        bench.run(3)
        assert up(bench) == {name: float(name != PARTS[part]) for name in up(bench)}
        assert len(bench.latest.verdicts) == 2
    bench.run(3)
    assert set(up(bench).values()) == {1.0}
    assert [job.receipt.began for job in bench.jobs.running] == [began]
    assert bench.jobs.ended == ()
