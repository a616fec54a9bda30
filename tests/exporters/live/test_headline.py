"""The one sentence: what it says of every scenario, and of what no simulation plays."""

import re
from dataclasses import replace

import pytest

from agent.diagnosis.advice import ADVICE, ALERTS
from agent.faults.model import Fault
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.faults.workload import workload_faults
from agent.model import Cause, Figure, Finding, GpuKey, Pair, Severity, State
from exporters.live.findings_document import findings_document
from exporters.live.headline import GpuSummary, HeadlineFacts, banner
from exporters.live.headline import headline as joined
from exporters.live.page_state import whole
from exporters.live.timeline import Timeline
from exporters.live.view import CONNECTION
from exporters.messages import UNANSWERED
from tests.support.live_machines import watched

OF_TIME = r", \d+ % of the time"

OF_FOUR = {
    "training": ("good", "4 GPUs busy"),
    "idle": ("good", "4 GPUs idle"),
    "held": ("notice", "4 GPUs occupied by an idle process"),
    "starved-disk": ("costly", f"4 GPUs starved by disk{OF_TIME}"),
    "starved-network": (
        "costly",
        rf"4 GPUs starved by the network{OF_TIME}",
    ),
    "starved-pcie": (
        "costly",
        rf"GPU 0 starved by PCIe{OF_TIME}; GPUs 1-3 idle",
    ),
    "starved-cpu": ("costly", rf"4 GPUs starved by the CPU{OF_TIME}"),
    "starved-host-thread": ("costly", rf"4 GPUs starved, each by its launching thread{OF_TIME}"),
    "starved-peer": ("costly", rf"GPUs 1-3 waiting for GPU 0{OF_TIME}; GPU 0 busy"),
    "nvlink-saturated": ("costly", "4 GPUs communicating over NVLink"),
    "throttled": ("costly", "4 GPUs slowed down by heat"),
    "gpu-hot": (
        "wrong",
        r"GPU 0: the core is \d+ °C above its temperature limit, 1 more finding below; 4 GPUs busy",
    ),
    "gpu-lost": ("wrong", "GPU 2 lost, 3 of 4 answer; GPUs 0, 1 and 3 busy"),
    "nvlink-down": (
        "wrong",
        r"GPU 0: NVLink 2 is down, 3 of 4 NVLinks are up, 1 more finding below; 4 GPUs busy",
    ),
    "nvlink-errors": ("costly", r"GPU 0: NVLink 1 has had \d+ errors since .*; 4 GPUs busy"),
    "pcie-degraded": ("costly", "GPU 0: the PCIe link runs at x8 instead of x16; 4 GPUs busy"),
    "port-degraded": ("costly", "Network port enp1s0f0 runs at 1 of 10 Gb/s; 4 GPUs busy"),
    "xid": (
        "wrong",
        "GPU 0: XID 48, Double Bit ECC Error, seen once, [0-9]+ s ago; 4 GPUs busy",
    ),
    "ecc": (
        "wrong",
        r"GPU 0: \d+ uncorrected ECC errors? since the driver was loaded; 4 GPUs busy",
    ),
}
OF_OTHERS = {
    "gb200-tray:row-remap": (
        "wrong",
        "GPU 0: a memory row could not be remapped, the GPU is due for replacement; 4 GPUs busy",
    ),
    "gb200-tray:training": ("good", "4 GPUs busy"),
    "dgx-1-v100:starved-disk": (
        "costly",
        rf"8 GPUs starved by disk{OF_TIME}",
    ),
    "dgx-1-v100:infiniband-saturated": (
        "costly",
        r"8 GPUs communicating over InfiniBand",
    ),
    "dgx-1-v100:port-degraded": ("costly", "InfiniBand port mlx5_0:1 runs at 40 of .*"),
    "k40:training": ("good", "The GPU is busy"),
    "k40:held": ("notice", "The GPU is occupied by an idle process"),
    "k40:gpu-lost": ("wrong", "GPU 0 lost, none answers"),
    "titan-x-maxwell:xid": ("wrong", "GPU 0: XID 62, Internal .*, [0-9]+ s ago; the GPU is busy"),
}
SCENARIOS = {f"dgx-station-v100:{name}": said for name, said in OF_FOUR.items()} | OF_OTHERS


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_said(name: str) -> None:
    frame = watched(name).run(23).hurry().run(2).frame()  # a second reading confirms errors
    level, sentence = SCENARIOS[name]
    assert re.fullmatch(sentence, re.sub(",? for [12][0-9] s", "", frame["headline"], count=1))
    assert frame["level"] == level


GPU, WARNING = GpuKey(0, "GPU-0"), Severity.WARNING
BUSY: Pair = (State.BUSY, Cause.NONE)
IDLE: Pair = (State.IDLE, Cause.NONE)
STARVED: Pair = (State.STARVED, Cause.DISK)
HUNG: Pair = (State.HUNG, Cause.NONE)
TALKING: Pair = (State.COMMUNICATING, Cause.NVLINK)


def gpus(*pairs: Pair | None, seconds: float = 0.0) -> list[GpuSummary]:
    return [GpuSummary(number, pair, seconds) for number, pair in enumerate(pairs)]


SHOWN = {
    "The first readings are under way": HeadlineFacts(ticked=False),
    "The NVIDIA driver has not responded for 4 s; nothing is known of 2 GPUs": HeadlineFacts(
        silence=4.2,
        gpus=gpus(None, None),
        findings=[Finding("source_down", WARNING, device="nvml")],
    ),
    "The NVIDIA driver has not responded for 2 min": HeadlineFacts(
        silence=179.0, why_not="none", driver_known=False
    ),
    "No GPU is watched: no NVIDIA driver": HeadlineFacts(
        why_not="no NVIDIA driver", driver_known=False
    ),
    "The NVIDIA driver sees no GPU": HeadlineFacts(),
    "GPU 3 starved by disk for 4 min; GPUs 0-2 busy": HeadlineFacts(
        gpus=gpus(BUSY, BUSY, BUSY, STARVED, seconds=299.0)
    ),
    "GPUs 0 and 2 starved by disk for 2 d 1 h; GPU 1 cannot be judged for 2 d 1 h": HeadlineFacts(
        gpus=gpus(STARVED, None, STARVED, seconds=176_400.0)
    ),
    "2 GPUs communicating over NVLink": HeadlineFacts(gpus=gpus(TALKING, TALKING)),
    "3 GPUs communicating over NVLink": HeadlineFacts(gpus=gpus(*[TALKING] * 3), full=True),
    "2 GPUs hung for 4 min, waiting for rank 1 (pid 7) and 1 more": HeadlineFacts(
        gpus=gpus(HUNG, HUNG, seconds=240.0), waited_for=["rank 1 (pid 7)", "rank 3 (pid 9)"]
    ),
    "2 GPUs cannot be judged": HeadlineFacts(gpus=gpus(None, None), full=True),
}
LEVELS = [
    *("unknown", "costly", "wrong", "unknown", "unknown", "costly", "costly", "notice"),
    *("costly", "wrong", "unknown"),
]


def headline(facts: HeadlineFacts) -> tuple[str, str, str]:
    """Level, sentence, and what to do first."""
    return joined(banner(facts))


@pytest.mark.parametrize(("sentence", "level"), [*zip(SHOWN, LEVELS, strict=True)])
def test_what_no_scenario_plays_is_said_too(sentence: str, level: str) -> None:
    assert headline(SHOWN[sentence])[:2] == (level, sentence)


def test_what_gpus_at_work_lose_is_said_before_what_is_full() -> None:
    peer: Pair = (State.STARVED, Cause.PEER)
    lose = [
        GpuSummary(n, BUSY, beside=(peer, 0.10 + n / 100), advice=ADVICE[peer]) for n in range(3)
    ]
    late = GpuSummary(3, BUSY, beside=((State.STARVED, Cause.CPU), 0.12))
    facts = HeadlineFacts(gpus=[*lose, late], full=True)
    sentence = "GPUs 0-2 starved by a slow peer, 11 % of the time, busy now; GPU 3 busy"
    assert headline(facts)[:2] == ("costly", sentence)
    assert headline(facts)[2].startswith("Look at the GPU that it waits for")
    alone = HeadlineFacts(gpus=[late._replace(number=0)])
    assert headline(alone)[1] == "The GPU is starved by the CPU, 12 % of the time, busy now"


def test_a_late_rank_is_said_though_every_gpu_is_busy() -> None:
    machine = watched("gb200-tray:late-rank").run(60)
    frame = machine.frame()
    assert re.fullmatch(
        r"GPUs 0, 2 and 3 waiting for GPU 1, 1\d % of the time, busy now; GPU 1 busy",
        frame["headline"],
    )
    assert frame["level"] == "costly"
    assert frame["action"].startswith("Look at GPU 1: ")
    assert {gpu["level"] for gpu in frame["gpus"]} == {"costly"}
    machine.bench.machine.set_scenario("training")
    assert machine.run(60).frame()["headline"].startswith("4 GPUs busy")


def test_a_source_that_is_down_is_said_where_nothing_worse_is() -> None:
    absent = Figure("metrics", 1.0, None, "count")
    without_data = [
        Finding("source_down", WARNING, device="power"),
        Finding("values_absent", WARNING, figures=(absent,), names=("failed",)),
    ]
    lanes = Figure("lanes", 8.0, 16.0, "count")
    worse = [*without_data, Finding("pcie_lanes", WARNING, GPU, figures=(lanes,))]
    assert headline(HeadlineFacts(gpus=gpus(BUSY), findings=without_data))[:2] == (
        "costly",
        "Source power is down; the GPU is busy",
    )
    assert headline(HeadlineFacts(gpus=gpus(BUSY), findings=worse))[:2] == (
        "costly",
        "GPU 0: the PCIe link runs at x8 instead of x16; the GPU is busy",
    )
    gone = Finding("array_degraded", WARNING, None, "md0", (Figure("missing", 1, None, "count"),))
    shown = headline(HeadlineFacts(gpus=gpus(BUSY), findings=[gone]))[1]
    assert shown.startswith("md0: 1 disk is missing"), "a device has its own name"


def test_an_xid_of_long_ago_is_no_news() -> None:
    once = Figure("times", 1.0, None, "count")
    found = [Finding("xid", WARNING, GPU, "48", (once,), ("Double Bit ECC Error",))]
    assert headline(HeadlineFacts(gpus=gpus(BUSY), findings=found))[0] == "costly"
    assert headline(HeadlineFacts(gpus=gpus(BUSY), findings=found, over={*found}))[:2] == (
        "good",
        "The GPU is busy",
    )
    snapshot = replace(watched("k40:training").run(2).view.latest(), verdicts={})
    timeline, over = Timeline(), []
    for minutes, count in ((0, 1.0), (10, 1.0), (20, 2.0), (30, 2.0), (40, 2.0)):
        seen = replace(found[0], figures=(once._replace(value=count),))
        at = 60.0 * minutes
        timeline = timeline.looked(replace(snapshot, at=at, wall=at), [seen])
        over.append(timeline.is_over(seen, at))
    assert over == [False, False, False, False, True]


def test_a_gpu_that_is_throttled_is_not_also_called_broken() -> None:
    hot: Pair = (State.THROTTLED, Cause.THERMAL)
    kind = "clocks_held_down"
    held = [Finding(kind, WARNING, GPU, names=("hardware_thermal",))]
    assert headline(HeadlineFacts(gpus=gpus(hot), findings=held))[0] == "costly"
    assert headline(HeadlineFacts(gpus=gpus(BUSY), findings=held))[0] == "costly"


def test_the_alert_of_a_state_is_as_grave_as_the_page_shows_it() -> None:
    rules = workload_faults(RuleParameters(AlertThresholds()))
    for state, (alert, severity) in ALERTS.items():
        declared = [
            Severity(rule.severity)
            for rule in rules
            if isinstance(rule, Fault) and rule.alert == alert
        ]
        grades = list(Severity)
        assert severity in declared, (state, alert)
        assert grades.index(severity) <= max(map(grades.index, declared)), alert


@pytest.mark.parametrize(
    ("spent", "when"),
    [
        ({(State.STARVED, 900.0): 0.3}, "fires now (over 25 % of 15 min)"),
        ({(State.STARVED, 900.0): 0.2}, "fires from 25 % of 15 min or 10 % of 6 h"),
        ({(State.THROTTLED, 900.0): 0.9}, "fires from 25 % of 15 min or 10 % of 6 h"),
    ],
)
def test_an_alert_on_a_share_says_that_it_fires_now(
    spent: dict[tuple[State, float], float], when: str
) -> None:
    starving = [one._replace(spent=spent) for one in gpus(STARVED)]
    assert banner(HeadlineFacts(gpus=starving))[0].notifies.endswith(when)


def test_the_cures_of_hardware_and_job_stand_side_by_side() -> None:
    lanes = Figure("lanes", 8.0, 16.0, "count")
    starving = [one._replace(advice="Read less.") for one in gpus(STARVED, STARVED)]
    found = [Finding("pcie_lanes", WARNING, GPU, figures=(lanes,))]
    hardware, work = banner(HeadlineFacts(gpus=starving, findings=found))
    assert hardware.action.startswith("Nothing is lost")
    assert hardware.alert == "DgxPcieDegraded"
    assert (work.level, work.sentence) == ("costly", "2 GPUs starved by disk")
    assert (work.action, work.alert) == ("Read less.", "DgxGpuStarved")


def test_a_job_that_writes_is_never_advised_to_read_less() -> None:
    """In the second in which a checkpoint ends, what little is read stands beside the wait."""
    machine = watched("l40s:checkpoint").run(60)
    advised = {machine.run(1).frame()["action"][:5] for _ in range(100)}
    assert advised == {"", "Write"}


def test_a_driver_that_hangs_leaves_nothing_that_looks_well() -> None:
    machine = watched("dgx-h100:training", gpus=2).run(24)
    snapshot = machine.page_state._snapshot
    reading = snapshot.readings[CONNECTION]
    readings = {**snapshot.readings, CONNECTION: replace(reading, at=-160.0)}
    hung = replace(snapshot, readings=readings)
    machine.page_state.take(hung, machine.page_state.known)
    frame = whole(machine.page_state.machine(), machine.page_state.tick())
    assert frame["level"] == "wrong"
    assert {job["level"] for job in frame["jobs"]} == {"unknown"}
    assert {job["sentence"] for job in frame["jobs"]} == {UNANSWERED}
    for gpu in frame["gpus"]:
        assert (gpu["state"], gpu["level"], gpu["summary"]) == (None, "unknown", UNANSWERED)
        assert {meter["value"] for meter in gpu["meters"]} == {None}


def test_exposed_communication_is_said_with_what_to_do() -> None:
    frame = watched("gb200-tray:exposed-communication").run(40).frame()
    assert re.fullmatch(
        r"4 GPUs only communicating over NVLink, [34]\d % of the time, busy now",
        frame["headline"],
    )
    assert frame["level"] == "notice"
    assert frame["action"].startswith("Overlap communication")
    assert all(gpu["beside"] and gpu["advice"] == frame["action"] for gpu in frame["gpus"])


def test_a_mig_gpu_has_a_row_for_each_instance() -> None:
    frame = watched("dgx-h100:training+mig").run(30).frame()
    divided, *others = frame["gpus"]
    assert [row["profile"] for row in divided["instances"]] == ["3g.40gb", "2g.20gb", "1g.10gb"]
    assert all(0 <= row["activity"] <= 1 for row in divided["instances"])
    assert frame["headline"].startswith("GPUs 1-7 busy; GPU 0 is divided by MIG")
    assert frame["level"] == "good"
    assert not any(gpu["instances"] for gpu in others)


def test_a_finding_has_its_since_and_a_short_absence_does_not_end_it() -> None:
    machine = watched("k40:training").run(5)
    known = findings_document(machine.view)

    def look(seconds: int) -> list[tuple[str, float | None]]:
        nonlocal known
        machine.run(seconds)
        known = findings_document(machine.view, known)
        return [(one["kind"], one["since"]) for one in known.documents]

    assert look(30) == []
    machine.bench.machine.set_scenario("gpu-lost")
    kind, since = look(20)[0]
    assert since == pytest.approx(machine.view.latest().wall)
    assert dict(look(30))[kind] == since
    for away, goes_on in ((30, True), (70, False)):
        machine.bench.machine.set_scenario("training")
        assert kind not in dict(look(away))
        machine.bench.machine.set_scenario("gpu-lost")
        assert (dict(look(20))[kind] == since) is goes_on
