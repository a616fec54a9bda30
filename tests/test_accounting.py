"""The account of seconds: nothing invented, nothing counted twice, whatever happens."""

import json

import pytest

from agent.diagnosis import accounting, rules
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.verdict import PAIRS, Verdict
from agent.model import Reason
from agent.sources import activity
from exporters.snapshot_json import document
from tests.machines import Bench, simulated

ONE_GPU = ("training", "idle", "held", "starved-disk", "starved-network", "starved-pcie")
ONE_GPU += ("starved-cpu", "starved-host-thread", "throttled", "gpu-hot")
SEVERAL = (*ONE_GPU, "starved-peer", "nvlink-saturated", "infiniband-saturated")
SYSTEMS = {
    "dgx-1-p100": SEVERAL,
    "dgx-1-v100": SEVERAL,
    "dgx-station-v100": tuple(s for s in SEVERAL if s != "infiniband-saturated"),
    "dgx-a100": SEVERAL,
    "dgx-h100": SEVERAL,
    "gtx-1080": ONE_GPU,
}
EXPECTED = {
    "training": "busy/none",
    "idle": "idle/none",
    "held": "held/none",
    "starved-disk": "starved/disk",
    "starved-network": "starved/network",
    "starved-pcie": "starved/pcie",
    "starved-cpu": "starved/cpu",
    "starved-host-thread": "starved/host_thread",
    "starved-peer": "starved/peer",
    "nvlink-saturated": "communicating/nvlink",
    "infiniband-saturated": "communicating/infiniband",
    "throttled": "throttled/thermal",
    "gpu-hot": "busy/none",
}
OTHERS = {"starved-pcie": "idle/none", "starved-peer": "starved/peer"}
"""What the GPUs other than the first are; where nothing is said, the same."""

FIRST = {"starved-peer": "busy/none"}


def verdicts(bench: Bench) -> dict[str, str]:
    """State and cause of each GPU by its index."""
    found = bench.look.all(accounting.STATE)
    return {key[0]: f"{key[2]}/{key[3]}" for key, value in found.items() if value}


def seconds(bench: Bench, gpu: str = "0") -> dict[str, float]:
    """The account of one GPU."""
    found = bench.look.where(accounting.STATE_SECONDS, gpu=gpu)
    return {f"{key[2]}/{key[3]}": value for key, value in found.items()}


def observed(bench: Bench, gpu: str = "0") -> float:
    return sum(seconds(bench, gpu).values())


@pytest.mark.parametrize(
    ("system", "scenario"), [(s, name) for s, names in SYSTEMS.items() for name in names]
)
def test_each_scenario_is_judged_as_what_it_is(system: str, scenario: str) -> None:
    bench = simulated(f"{system}:{scenario}").run(66 if scenario == "held" else 12)
    first = FIRST.get(scenario, EXPECTED[scenario])
    others = OTHERS.get(scenario, first)
    found = verdicts(bench)
    assert found == {gpu: first if gpu == "0" else others for gpu in found}


def test_every_pair_is_there_from_the_first_tick() -> None:
    bench = simulated("dgx-h100:training").run(1)
    assert set(seconds(bench).values()) == {0.0}
    assert len(seconds(bench)) == len(PAIRS) == 16
    assert len(bench.look.where(accounting.STATE, gpu="7")) == 16


def test_the_account_grows_by_a_second_a_second() -> None:
    bench = simulated("dgx-h100:starved-cpu").run(31)
    assert observed(bench) == pytest.approx(30.0)
    account = seconds(bench)
    busy = bench.look.value(activity.ACTIVE_SECONDS, "0", bench.agent.gpus.fleet.gpus[0].uuid)
    assert account["busy/none"] == pytest.approx(busy, abs=0.3)
    assert account["busy/none"] == pytest.approx(0.178 * 30, abs=1.0)


def test_a_missed_tick_is_made_up_for_and_a_gap_is_not() -> None:
    bench = simulated("dgx-h100:training").run(5)
    before = observed(bench)
    bench.clock.advance(2.0)  # two ticks late
    bench.run(1)
    assert observed(bench) == pytest.approx(before + 3.0)
    bench.clock.advance(59.0)
    bench.run(1)
    assert observed(bench) == pytest.approx(before + 3.0)
    uuid = bench.agent.gpus.fleet.gpus[0].uuid
    assert bench.look.value(accounting.UNOBSERVED_SECONDS, "0", uuid) == pytest.approx(60.0)
    bench.run(10)
    assert observed(bench) == pytest.approx(before + 13.0)


def test_a_gpu_that_is_lost_and_returns_goes_on_with_its_account() -> None:
    bench = simulated("dgx-h100:training").run(10)
    bench.machine.world.lose(3)
    bench.run(12)
    absences = bench.agent.poller.latest.absences(bench.clock.monotonic() - 1)
    lost = [a for a in absences if a.metric is accounting.STATE]
    assert [(a.labels[0], a.reason) for a in lost] == [("3", Reason.LOST)]
    during = observed(bench, "3")
    assert during <= 10.0
    assert observed(bench, "2") == pytest.approx(21.0)
    bench.machine.world.restore(3)
    bench.run(30)
    after = observed(bench, "3")
    uuid = bench.agent.gpus.fleet.gpus[3].uuid
    missed = bench.look.value(accounting.UNOBSERVED_SECONDS, "3", uuid)
    assert missed is not None
    assert during < after < 51.0
    assert after + missed == pytest.approx(51.0)
    assert verdicts(bench)["3"] == "busy/none"


def test_an_unknown_activity_is_no_verdict() -> None:
    bench = simulated("dgx-a100:training").run(5)
    bench.machine.world.set_mig(0, True)
    bench.run(70)
    assert "0" not in verdicts(bench)
    assert verdicts(bench)["1"] == "busy/none"


def test_the_snapshot_tells_it_in_words() -> None:
    bench = simulated("dgx-1-v100:starved-disk").run(12)
    told = document(bench.agent.poller.latest, bench.clock.monotonic() - 1)["gpus"][0]["verdict"]
    assert (told["state"], told["cause"], told["grade"]) == ("starved", "disk", "nvml")
    assert told["sentence"].startswith("starved by disk: md0 reads 1.9")
    assert "of 2.00 GB/s" in told["sentence"]
    assert "6 loader processes in uninterruptible sleep" in told["sentence"]
    assert told["advice"]
    assert told["seconds"] >= 8.0
    json.dumps(told)


def test_links_that_are_all_down_cost_nobody_a_verdict() -> None:
    bench = simulated("dgx-h100:training").run(5)
    for link in range(18):
        bench.machine.world.cut_link(0, link)
    bench.run(90)
    assert set(verdicts(bench).values()) == {"busy/none"}
    assert observed(bench, "0") == pytest.approx(94.0, abs=1.1)
    assert observed(bench, "7") == pytest.approx(94.0, abs=1.1)


def test_a_rule_that_fails_on_one_gpu_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge(e: Evidence) -> Verdict:
        if e.gpu[0] == "0":
            raise ZeroDivisionError("a rule")
        return rules.judge(e)

    bench = simulated("dgx-h100:training").run(5)
    monkeypatch.setattr(accounting, "judge", judge)
    bench.run(10)
    assert set(verdicts(bench)) == {str(n) for n in range(1, 8)}
    absences = bench.agent.poller.latest.absences(bench.clock.monotonic() - 1)
    failed = [a for a in absences if a.metric is accounting.STATE]
    assert [(a.labels[0], a.reason) for a in failed] == [("0", Reason.FAILED)]
    assert "ZeroDivisionError" in failed[0].detail


def test_only_traffic_that_was_seen_is_remembered() -> None:
    bench = simulated("dgx-h100:held").run(40)
    _, guarded = bench.agent.poller.observers
    assert {a.talked for a in guarded.observer.accounts.values()} == {False}
