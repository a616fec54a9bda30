"""Findings of `check` on simulated machines, and none on a healthy one."""

import tomllib
from itertools import product
from pathlib import Path

import pytest

from agent.config.settings import Settings
from agent.errors import BadInput
from agent.faults.findings import Search
from agent.faults.model import Finding
from agent.faults.thresholds import AlertThresholds
from agent.hardware.nvml import address_of
from agent.limits.resolution import LimitConfig, LimitsConfig
from agent.model import Reading, ReadKey, Sample, Snapshot
from agent.polling import intervals
from agent.simulator import models, scenarios
from agent.sources import activity, pcie
from agent.specs.sheets import SpecConfig, load
from agent.status.words import finding_text
from tests.support.machine_controls import change_answer
from tests.support.machines import AgentBench, Played, played, simulated
from tests.support.nightly import covering

CASES = tomllib.loads(Path(__file__).with_name("findings.toml").read_text("utf-8"))

SYSTEMS = load().systems

WRONG = CASES["wrong"]
FAULTS = CASES["faults"]
"""The faults of the data paths; every system that can have one is tried below."""
HEALTHY = (
    *("dgx-1-p100", "dgx-1-v100", "dgx-station-v100", "dgx-a100", "dgx-h100", "k40"),
    *("dgx-b200", "dgx-b300", "gb200-tray", "dgx-spark", "l40s"),
)


@pytest.mark.parametrize("machine", WRONG)
def test_a_fault_is_found_and_named(machine: str) -> None:
    ill = played(machine)
    slowly = machine in ("dgx-h100:nvlink-errors", "l40s:ecc", "dgx-a100:ecc+mig")  # once a minute
    assert WRONG[machine] in "\n".join(seen(ill, 75 if slowly else 12))


@pytest.mark.parametrize("code", [10, 999])
def test_a_gpu_of_which_some_calls_fail_is_found(code: int) -> None:
    bench = simulated("dgx-a100:training", gpus=2).run(5)
    for name in ("PowerUsage", "Temperature", "ClockInfo", "FieldValues"):
        bench.machine.driver.fail(f"nvmlDeviceGet{name}", code, 0)
    assert "driver calls hang or fail: " in "\n".join(shown(bench.run(7)))


@pytest.mark.parametrize(("system", "fault"), covering(product(models.ALL, FAULTS)))
def test_a_fault_of_a_path_is_found_on_every_system(system: str, fault: str) -> None:
    if scenarios.missing(models.ALL[system], fault):
        with pytest.raises(BadInput):
            simulated(f"{system}:{fault}")
        return
    found = seen(played(f"{system}:{fault}"), 12)
    said = FAULTS[fault]
    if fault == "port-degraded" and not models.ALL[system].hcas:
        said = "network port "
    assert any(said in sentence for sentence in found), found


def test_a_nic_with_carrier_below_its_rate_is_named() -> None:
    bench = simulated("dgx-1-v100:training")
    bench.machine.host.files._files["/sys/class/net/eno1/speed"] = lambda: "1000\n"
    assert shown(looked_at(bench, 4)) == [
        "network port eno1 runs at 1 Gb/s, below its rate of 10 Gb/s"
    ]


def test_an_xid_is_reported_with_how_long_ago_it_came() -> None:
    bench = simulated("gtx-1080:training").run(12)
    bench.machine.driver.xid(0, 62)
    bench.run(8)
    assert shown(bench) == [
        "GPU 0: XID 62, fatal error (Internal micro-controller halt), seen once, 8 s ago"
    ]
    (later,) = shown(bench.skip(119).run(1))
    assert later.endswith("seen once, 2 min ago")


def test_a_member_that_an_array_lost_is_reported() -> None:
    bench = simulated("dgx-a100:training", gpus=1)
    bench.machine.host.files._files["/sys/block/md0/md/degraded"] = lambda: "1\n"
    assert shown(looked_at(bench, 4)) == ["array md0 is missing 1 of its disks"]


@pytest.mark.parametrize(
    ("system", "scenario"), covering(product(HEALTHY, ("training", "idle", "held", "starved-disk")))
)
def test_a_healthy_machine_has_none(system: str, scenario: str) -> None:
    assert seen(played(f"{system}:{scenario}"), 12) == []


def test_a_gpu_that_is_divided_has_none() -> None:
    assert shown(simulated("dgx-b200:training+mig", gpus=2).run(12)) == []


def refused(bench: AgentBench, call: str, answer: int, index: int = 0) -> AgentBench:
    """A machine of which one GPU answers one question with this number."""
    library = bench.machine.nvml

    def odd(right: int, handle: object) -> int:
        known = library.nvmlDeviceGetHandleByIndex(index)
        return answer if address_of(handle) == address_of(known) else right

    change_answer(library, call, odd)
    return bench


def looked_at(bench: AgentBench, seconds: int = 12) -> AgentBench:
    """A machine as `check` leaves it: at the last tick every quick read has run."""
    bench.run(seconds - 1)
    for read in bench.agent.gpus.reads():
        if read.every() <= intervals.ENERGY:
            read.due = 0.0
    return bench.run(1)


GENERATION = "nvmlDeviceGetCurrPcieLinkGeneration"
SLOW = "GPU 3: its PCIe link is slower than its slot under load: generation"


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("dgx-station-v100:training", f"{SLOW} 1 of 3"),
        ("dgx-h100:training", f"{SLOW} 1 of 5"),
        ("dgx-station-v100:idle", None),
        ("dgx-h200:held", None),
    ],
)
def test_a_slow_generation_is_a_fault_only_under_load(machine: str, said: str | None) -> None:
    bench = refused(simulated(machine, gpus=4), GENERATION, 1, index=3)
    assert shown(looked_at(bench)) == ([said] if said else [])


@pytest.mark.parametrize("machine", ["dgx-station-v100:starved-pcie", "dgx-h100:starved-pcie"])
def test_traffic_is_load_too(machine: str) -> None:
    (found,) = shown(looked_at(refused(simulated(machine, gpus=2), GENERATION, 1)))
    assert found.startswith(SLOW.replace("3", "0"))


def test_a_gpu_of_which_no_load_is_known_is_not_judged() -> None:
    bench = refused(simulated("dgx-station-v100:training"), GENERATION, 1)
    for call in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetSamples"):
        bench.machine.driver.fail(call, 3)
    bench.machine.driver.fail("nvmlDeviceGetPcieThroughput", 3)
    assert shown(looked_at(bench)) == []


@pytest.mark.parametrize(("before", "then"), [("idle", "training"), ("training", "idle")])
def test_a_generation_read_beside_the_load_is_that_of_rest(before: str, then: str) -> None:
    """After the load the mean of activity still reports it, and the link rests already."""
    bench = simulated(f"dgx-station-v100:{before}").run(12)
    bench.machine.set_scenario(then)
    for _ in range(12 if then == "training" else 6):
        assert shown(bench.run(1)) == []


@pytest.mark.parametrize(("read_at", "faults"), [(4.0, 0), (8.5, 1), (9.0, 1)])
def test_a_generation_counts_if_it_was_read_while_the_load_was_seen(
    read_at: float, faults: int
) -> None:
    one = ("0", "GPU-0")
    readings = (
        Reading(ReadKey("activity", "gpm"), 9.0, 1.0, (Sample(activity.ACTIVITY, one, 0.9),)),
        Reading(ReadKey("pcie", "link"), read_at, 5.0, (Sample(pcie.GENERATION, one, 1.0),)),
        Reading(ReadKey("pcie", "limits"), 0.0, 3600.0, (Sample(pcie.GENERATION_LIMIT, one, 3.0),)),
    )
    snapshot = Snapshot(9, 9.0, 0.0, {reading.key: reading for reading in readings})
    assert len(list(Search().findings(snapshot))) == faults


def test_a_slot_that_offers_less_than_the_sheet_is_named_once() -> None:
    bench = refused(simulated("dgx-1-v100:training"), "nvmlDeviceGetMaxPcieLinkGeneration", 2)
    assert shown(refused(bench, GENERATION, 2).run(12)) == [
        "GPU 0: its slot provides generation 2 x16 (8 GB/s), but the spec sheet states 15.8 GB/s"
    ]


def test_the_slot_of_a_single_gpu_is_its_owners_choice() -> None:
    bench = refused(simulated("k40:training"), "nvmlDeviceGetMaxPcieLinkGeneration", 2)
    assert shown(refused(bench, GENERATION, 2).run(12)) == []


def test_a_limit_that_its_owner_set_is_no_slow_port() -> None:
    config = Settings(LimitsConfig((LimitConfig("network", "eno1", "receive", 1e8),)))
    assert shown(looked_at(simulated("dgx-1-v100:training", config), 4)) == []


def said(found: Finding) -> str:
    """The text of a finding, behind the name of its GPU."""
    return f"GPU {found.gpu.index}: {finding_text(found)}" if found.gpu else finding_text(found)


def shown(bench: AgentBench) -> list[str]:
    """Return the findings of `check`, with the sheet of the system that is simulated."""
    spec = SYSTEMS[bench.machine.system.name]
    bench.agent.faults.observe(bench.latest)
    windowed = (one.finding for one in bench.agent.faults.active)
    found = dict.fromkeys((*Search().findings(bench.latest, spec), *windowed))
    return list(dict.fromkeys(map(said, found)))


def seen(machine: Played, seconds: int) -> list[str]:
    """The same of a machine that only plays on, after a look at each tenth tick."""
    spec, search = SYSTEMS[machine.bench.machine.system.name], Search()
    for second in range(seconds % 10, seconds, 10):
        search.findings(machine.at(second).snapshot, spec, AlertThresholds())
    found = search.findings(machine.at(seconds).snapshot, spec, AlertThresholds())
    return [said(one) for one in found]


def test_more_gpus_than_the_system_has_are_reported() -> None:
    bench = simulated("dgx-h100:training", Settings(SpecConfig(system="k40"))).run(3)
    texts = map(said, Search().findings(bench.latest))
    assert "8 GPUs respond, but 1 are expected" in " ".join(texts)


@pytest.mark.parametrize(("calls", "named"), CASES["refusals"])
def test_a_gpu_that_refuses_what_its_siblings_answer_is_found(
    calls: tuple[str, ...], named: str
) -> None:
    """A rule that compares its values finds nothing: there are none."""
    bench = simulated("dgx-h100:training", gpus=2)
    for call in calls:
        bench.machine.driver.fail(f"nvml{call}", 3, 1)
    found = Search().findings(bench.run(8).latest)
    texts = [said(one) for one in found if one.kind == "gpu_refuses"]
    assert len(texts) == 1
    assert named in texts[0]
    assert "GPU 1" in texts[0]
