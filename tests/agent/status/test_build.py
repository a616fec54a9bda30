"""The status of simulated machines: the same for all who ask, and sound in its parts."""

import re
from dataclasses import replace

import msgspec
import pytest

from agent.diagnosis.advice import ADVICE
from agent.faults.findings import by_kind
from agent.faults.model import Finding
from agent.faults.thresholds import AlertThresholds
from agent.jobs.job import percent
from agent.model import Cause, Figure, GpuKey, Severity, State
from agent.status.findings import merged_shares
from agent.status.jobs import sentence
from agent.status.model import Level, LinkLoad
from tests.support.machine_controls import lose
from tests.support.statuses import shown


@pytest.mark.parametrize("name", ["dgx-h100:checkpoint", "dgx-h100:hang+xid-79"])
def test_a_status_asked_for_each_second_is_that_of_one_asked_once(name: str) -> None:
    often, once = (shown(name, gpus=2) for _ in range(2))
    for _ in range(20):
        often.run(2)
        often.board.json()
    once.run(40)
    assert msgspec.json.decode(often.board.json()) == msgspec.json.decode(once.board.json())


def test_all_that_a_lost_gpu_causes_is_folded_under_it() -> None:
    status = shown("dgx-h100:xid-79", gpus=2).run(40).status
    open_ones = [one for one in status.findings if one.hidden_by is None]
    assert [one.kind for one in open_ones] == ["gpu_lost"]
    assert {"xid", "values_absent"} <= {one.kind for one in status.findings}


def test_a_gpu_that_was_never_met_is_a_device_of_its_finding() -> None:
    machine = shown("dgx-h100:training", gpus=2)
    lose(machine.bench.machine, 1)
    findings = {one.kind: one for one in machine.run(15).status.findings}
    assert findings["gpus_missing"].devices == ("gpu1",)


def test_work_beside_a_critical_finding_is_neither_good_nor_the_fault() -> None:
    status = shown("dgx-h100:training+xid-48", gpus=2).run(15).status
    work = status.headline[-1]
    assert (work.text, work.level) == ("2 GPUs busy", None)
    assert [gpu.level for gpu in status.gpus] == [Level.CRITICAL, Level.GOOD]
    assert status.level is Level.CRITICAL


def test_a_driver_that_does_not_respond_hides_no_critical_fault() -> None:
    machine = shown("dgx-h100:training+xid-48", gpus=2).run(15)
    machine.board(replace(machine.board.snapshot, turns={"nvml": 20.0}))
    fault, driver, work = machine.status.headline
    assert fault.text.startswith("GPU 0: XID 48, ")
    assert fault.do
    assert (driver.level, work.text) == (None, "Nothing is known of 2 GPUs")


@pytest.mark.parametrize(
    ("name", "cause"), [("exposed-communication", Cause.NVLINK), ("hang", Cause.PEER)]
)
def test_a_job_that_has_just_begun_is_not_judged_by_its_first_seconds(
    name: str, cause: Cause
) -> None:
    machine = shown(f"dgx-h100:{name}", gpus=3)
    ticks = [machine.run(1).status for _ in range(40)]
    causes = {group.cause for status in ticks for group in status.groups}
    assert cause in causes
    assert causes <= {cause, Cause.NONE, Cause.UNKNOWN, None}
    awaited = {gpu.waits_for for status in ticks[20:] for gpu in status.gpus}
    assert awaited <= {1, None}, "none waits for a GPU that spins"
    unknown = {gpu.do for status in ticks[:30] for gpu in status.gpus if gpu.cause is Cause.UNKNOWN}
    assert unknown <= {None}


def test_a_small_slowdown_is_said_beside_the_work_with_its_reason() -> None:
    machine = shown("dgx-h100:training", gpus=2).run(30)
    machine.bench.machine.set_scenario("throttled")
    groups = [machine.run(1).status.groups for _ in range(8)]
    said = [why for (group,) in groups if group.state is State.BUSY for why in group.why]
    assert said
    heat = re.compile(r"GPU 0 slowed down by heat \d+ % of the time now: thermal ")
    assert all(map(heat.match, said))


def test_a_loss_now_comes_before_a_fault_that_can_wait() -> None:
    heat = shown("dgx-a100:throttled+raid-degraded", gpus=2).run(40).status
    assert [len(one.gpus) for one in heat.headline] == [2, 0]
    disk = shown("dgx-1-v100:pages-near+disk-dead").run(5).skip(65).status
    assert [one.kind for one in disk.findings][:2] == ["disk_controller_alone", "pages_near"]


def test_rounding_splits_no_group_of_gpus() -> None:
    """GPUs of one job waited for 75.4 and 75.6 %, and stood apart with 75 and 76 %."""
    waited = [(0.754, "disk"), (0.756, "disk"), (0.755, "cpu"), (0.773, "disk"), (0.78, "disk")]
    fault = by_kind(AlertThresholds())["starved"]
    found = merged_shares(
        Finding(
            fault,
            Severity.WARNING,
            GpuKey(number, f"GPU-{number}"),
            figures=(Figure("share", share),),
            names=(cause,),
        )
        for number, (share, cause) in enumerate(waited)
    )
    shown = [(one.names[0], percent(one.figures[0].value)) for one in found.values()]
    assert shown == [
        *(("disk", "75 %"), ("disk", "75 %"), ("cpu", "76 %"), ("disk", "75 %"), ("disk", "78 %")),
    ]


def test_a_path_shows_the_fault_of_its_link() -> None:
    status = shown("dgx-h100:nvlink-errors", gpus=2).run(6).skip(65).skip(65).run(4).status
    assert {edge.gpu: edge.load for edge in status.links} == {0: "erring", 1: "low"}
    assert [edge.text for edge in status.links] == ["GPU 0, link 1 had errors", None]
    assert [gpu.faulty for gpu in status.gpus] == [True, False]
    faults = {kind.path: kind.faults for kind in status.path_kinds if kind.faults}
    assert faults == {"nvlink": {"gpu0": Level.WARNING}}


def test_the_gpu_that_others_wait_for_shows_its_own_loss() -> None:
    status = shown("dgx-h100:late-rank", gpus=3).run(60).status
    waiting, late = status.groups
    assert (waiting.cause, late.cause) == (Cause.PEER, Cause.HOST_THREAD)
    step = ADVICE[State.STARVED, Cause.HOST_THREAD]
    assert [gpu.do for gpu in status.gpus] == [f"For GPU 1: {step}", step, f"For GPU 1: {step}"]
    assert late.gpus == (1,)
    assert [job.level for job in status.jobs] == [Level.WARNING]


def test_a_job_that_was_faster_says_its_speed_before() -> None:
    job = shown("dgx-h100:training", gpus=2).run(30).bench.jobs.running[0]
    now = "2 steps/s (0.5 s each)"
    for rates, said in (((None, 4.0, 2.0), f"{now}; 4 before"), ((2.05, 2.0), now), ((), now)):
        assert sentence(replace(job, step=0.5, rates=rates)) == said


def test_a_port_that_flaps_says_whether_it_is_down_now() -> None:
    machine = shown("dgx-a100:training", gpus=1)
    texts = []
    for scenario in ("training+infiniband-flapping", "training"):
        machine.bench.machine.set_scenario(scenario)
        found = machine.run(5).skip(59).status.findings
        texts += [one.text.endswith(", down now") for one in found if one.kind == "port_flapping"]
    assert texts == [True, False]


def test_the_file_system_of_an_array_is_checked_on_the_array() -> None:
    (fault,) = shown("dgx-a100:training+disk-damaged", gpus=1).run(20).status.findings
    assert fault.devices == ("md0",)
    assert fault.text.startswith("the file system of md0 is damaged")
    assert fault.do
    assert "`fsck /dev/md0`" in fault.do


def test_a_job_without_work_has_no_steps_to_be_seen() -> None:
    status = shown("dgx-h100:held", gpus=2).run(60).status
    assert [job.text for job in status.jobs] == ["steps per second: none, no work seen"]


def test_an_alert_says_the_time_that_is_left() -> None:
    machine = shown("dgx-h100:hang", gpus=2)
    clauses = [one for _ in range(17) for one in machine.run(10).status.headline]
    texts = [one.alert.text for one in clauses if one.alert]
    assert "would fire in 1 min" in "".join(texts)
    assert "would fire now" in texts[-1]


def test_a_fault_of_the_fabric_marks_nvlink_everywhere() -> None:
    for name, count in (("dgx-h100:training+switch-fatal", 2), ("gb200-tray:idle+fabric-error", 1)):
        status = shown(name, gpus=2).run(20).status
        (path,) = (one for one in status.path_kinds if one.path == "nvlink")
        assert (len(path.faults), path.rates) == (count, f"{count} with a fault")
        assert sum(link.load is LinkLoad.ERRING for link in status.links) == count


@pytest.mark.parametrize(
    ("name", "first"), [("dgx-station-v100", "nvlink-down"), ("dgx-1-v100", "training")]
)
def test_both_ends_of_a_link_are_one_fault(name: str, first: str) -> None:
    machine = shown(f"{name}:{first}").run(5)
    machine.bench.machine.set_scenario("training+nvlink-down")
    status = machine.skip(65).status
    assert sum(link.load is LinkLoad.DOWN for link in status.links) == 1
    assert sum("NVLink is down" in event.text for event in status.events) == 1
    near, far = (one for one in status.findings if one.kind == "links_down")
    assert (near.hidden_by, far.hidden_by) == (None, near.id)
    (clause,) = (one for one in status.headline if one.level is Level.CRITICAL)
    assert re.fullmatch(r"1 NVLink between GPU 0 .link 2. and GPU 3 .link \d. is down", clause.text)
    assert clause.since == min(near.since, far.since)
    assert re.match("No recent XID of the GPU names the cause(?!.*Fabric)", clause.do or "")
    assert far.alert
    assert "held back" not in far.alert.text  # Alertmanager sends both


def test_two_links_of_a_gpu_are_one_fault_with_three_ends() -> None:
    machine = shown("dgx-1-v100:training").run(5)
    machine.bench.machine.set_scenario("training+nvlink-down")
    machine.bench.machine.cut_link(3, 4)
    found = [one for one in machine.skip(65).status.findings if one.kind == "links_down"]
    hub, *ends = sorted(found, key=lambda one: one.hidden_by or "")
    assert hub.text.startswith("GPU 3: 2 NVLinks are down")
    assert [one.hidden_by for one in ends] == 2 * [hub.id]


def test_two_gpus_that_need_a_reset_are_one_fault() -> None:
    machine = shown("dgx-h100:training+recovery-reset", gpus=3)
    machine.bench.machine.gpus[2].health.recovery = 1
    status = machine.run(20).status
    text = "GPUs 0 and 2, each: the driver requests a reset (`nvidia-smi --gpu-reset -i 0,2`)"
    assert [one.text for one in status.findings if one.kind == "recovery_needed"] == [text]
    assert text in [event.text for event in status.events]


def test_a_warning_comes_before_work_that_is_only_worth_a_note() -> None:
    status = shown("dgx-a100:exposed-communication+nvlink-down+rows-pending", gpus=2).run(60).status
    levels = [clause.level for clause in status.headline]
    assert levels == [Level.CRITICAL, Level.WARNING, Level.INFO]


def test_a_lost_gpu_comes_first_and_leaves_room_for_a_warning_before_a_note() -> None:
    status = shown("dgx-station-v100:exposed-communication+gpu-lost+pages-pending").run(50).status
    kinds = {one.id: one.kind for one in status.findings}
    told = [[kinds[name] for name in clause.findings] for clause in status.headline]
    assert told == [["gpu_lost"], ["pages_pending"], []]


def test_counters_of_a_link_that_is_down_say_so() -> None:
    status = shown("dgx-a100:training+nvlink-down", gpus=2).run(5).skip(65).status
    texts = {one.text for one in status.absences if one.metric.startswith("dgx_nvlink_link_")}
    assert texts == {"GPU 0 link 2: no usable value returned: the link is down"}


def test_a_job_loses_the_time_of_its_lost_gpu() -> None:
    machine = shown("dgx-h100:training", gpus=2).run(30)
    machine.bench.machine.set_scenario("gpu-lost")
    before = machine.run(10).status.jobs[0]
    status = machine.run(60).status
    (job,), graph = status.jobs, status.graph
    assert graph.text == "through NVSwitch, 18 of 144 links up"
    assert job.lost_gpu_seconds - before.lost_gpu_seconds >= 55
    assert re.search(r"; lost \S+ \(a GPU lost \d+ % of all", job.hours), job
