"""Page of each machine: every system, the right GPU and path, and nothing made up."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from agent.cli.assembly import Hardware
from agent.cli.options import view_of
from agent.hardware.files import RealFiles
from agent.hardware.host import Host
from agent.jobs.job import WatchedJobs
from agent.simulator import SYSTEMS
from agent.sources import power
from agent.sources.workload import JobConfig
from agent.status.history import History
from exporters.live.findings_document import FindingsDocument, findings_document
from exporters.live.headline import HeadlineFacts, banner
from exporters.live.page_state import PageState, whole
from exporters.live.tiles import METERS
from tests.support import machines
from tests.support.live_machines import Document, watched
from tests.support.machine_controls import cut_link
from tests.support.nightly import shortly

GRAPHS = {
    "dgx-1-p100": ("mesh", 16),
    "dgx-1-v100": ("mesh", 16),
    "dgx-station-v100": ("full", 6),
    "dgx-a100": ("switch", 0),
    "dgx-h100": ("switch", 0),
    "dgx-h200": ("switch", 0),
    "dgx-b200": ("switch", 0),
    "dgx-b300": ("switch", 0),
    "gb200-tray": ("switch", 0),
}


SHORT = {
    *("dgx-1-v100", "dgx-station-v100", "dgx-a100", "dgx-h100", "gb200-tray"),
    *("dgx-spark", "k40", "sixteen"),
}


@pytest.fixture(scope="module", params=shortly([*SYSTEMS, "sixteen"], SHORT))
def frame(request: pytest.FixtureRequest) -> Document:
    return watched(f"{request.param}:training").run(4).hurry().run(2).frame()


def test_every_system_makes_a_frame_and_json(frame: Document) -> None:
    assert json.loads(json.dumps(frame, allow_nan=False))["gpus"]
    assert frame["machine"]["gpus"] == len(frame["gpus"])
    assert frame["uptime_seconds"] >= 86_400
    assert {gpu["state"] for gpu in frame["gpus"]} == {"busy"}
    assert all(gpu["summary"] and gpu["evidence"] for gpu in frame["gpus"])


def test_what_is_not_known_is_null_and_has_its_reason(frame: Document) -> None:
    metrics = {meter.name: meter.metric.name for meter in METERS}
    absent = {row["metric"] for row in frame["absent"] if "GPU" in row["where"]}
    for gpu in frame["gpus"]:
        unknown = [meter["name"] for meter in gpu["meters"] if meter["value"] is None]
        assert absent.issuperset(metrics[name] for name in unknown)
        assert "activity" not in unknown
    assert all(row["reason"] and row["meaning"] for row in frame["absent"])


def test_a_path_without_a_limit_has_no_ratio_but_may_move(frame: Document) -> None:
    unlimited = [path for path in frame["paths"] if path["limit"] is None]
    assert unlimited
    assert all(path["ratio"] is None and not path["saturated"] for path in unlimited)
    assert any(path["bytes_per_second"] for path in unlimited if path["direction"] == "read")
    for path in frame["paths"]:
        if path["ratio"] is not None:
            shown = path["ratio"] * path["limit"]
            assert path["bytes_per_second"] == pytest.approx(
                shown, rel=1e-3, abs=path["limit"] / 1e4
            )


def test_paths_stand_in_order(frame: Document) -> None:
    kinds = [path["path"] for path in frame["paths"]]
    order = ["nvlink", "pcie", "hbm", "disk", "network", "infiniband"]
    assert kinds == sorted(kinds, key=order.index)
    gpus = [int(p["gpu"]) for p in frame["paths"] if p["path"] == "pcie"]
    assert gpus == sorted(gpus)


def test_links_make_the_graph_of_the_system(frame: Document) -> None:
    kind, pairs = GRAPHS.get(frame["machine"]["system"] or "", ("none", 0))
    if frame["machine"]["title"] is None and frame["links"]:
        kind = "switch"  # no sheet: what the far ends make
    assert (frame["graph"]["kind"], len(frame["graph"]["expected"])) == (kind, pairs)
    remotes = {link["remote"]["kind"] for link in frame["links"]}
    assert remotes == {"none": set(), "switch": {"switch"}}.get(kind, {"gpu"})
    assert all(link["up"] for link in frame["links"])
    for a, b, number in frame["graph"]["expected"]:
        ends = [
            link
            for link in frame["links"]
            if (link["gpu"], link["remote"]["gpu"]) == (str(a), str(b))
        ]
        assert len(ends) == number


MARKS: dict[str, tuple[dict[str, str], set[str]]] = {
    "dgx-1-v100:starved-disk": ({str(n): "disk" for n in range(8)}, {"md0"}),
    "dgx-h100:starved-disk": (  # no sheet states what its disks can read: busy time says so
        {str(n): "disk" for n in range(2)},
        {"md1", *(f"nvme{n}n1" for n in range(2, 10))},
    ),
    "dgx-1-v100:starved-network": ({str(n): "network" for n in range(8)}, {"eno1"}),
    "dgx-h100:starved-pcie": ({"0": "pcie"}, {"gpu0"}),
    "dgx-1-v100:starved-peer": ({str(n): "peer" for n in range(1, 8)}, set()),
    "dgx-station-v100:nvlink-saturated": (
        {str(n): "nvlink" for n in range(4)},
        {f"gpu{n}" for n in range(4)},
    ),
    "dgx-1-v100:infiniband-saturated": (
        {str(n): "infiniband" for n in range(8)},
        {f"mlx5_{n}:1" for n in range(4)},
    ),
}


@pytest.mark.parametrize("name", MARKS)
def test_the_right_gpus_and_paths_are_marked(name: str) -> None:
    frame = watched(name, gpus=2).run(24).frame()
    causes = {g["gpu"]: g["cause"] for g in frame["gpus"] if g["cause"] != "none"}
    full = {path["device"] for path in frame["paths"] if path["saturated"]}
    assert (causes, full) == MARKS[name]
    marked = [gpu for gpu in frame["gpus"] if gpu["gpu"] in causes]
    assert all(g["advice"] and g["seconds"] is not None and g["evidence"] for g in marked)


@pytest.mark.parametrize(
    ("system", "ends"), [("dgx-1-v100", {("0", "2", "3")}), ("dgx-h100", {("0", "2", None)})]
)
def test_a_link_that_is_down_is_drawn_to_where_it_leads(
    system: str, ends: set[tuple[str, str, str | None]]
) -> None:
    """As it was while it was up."""
    machine = watched(f"{system}:training").run(3)
    machine.frame()
    machine.bench.machine.set_scenario("nvlink-down")
    frame = machine.hurry().run(3).frame()
    down = {
        (link["gpu"], link["link"], link["remote"]["gpu"])
        for link in frame["links"]
        if link["up"] is False
    }
    assert ends <= down
    if system == "dgx-1-v100":
        assert down - ends == {("3", "0", "0")}


def test_a_lost_gpu_keeps_its_tile_and_says_nothing() -> None:
    frame = watched("dgx-a100:gpu-lost").run(9).frame()
    lost = frame["gpus"][2]
    assert (lost["lost"], lost["state"], lost["seconds"]) == (True, None, 3)
    assert "lost" in lost["summary"]
    assert all(meter["value"] is None for meter in lost["meters"])
    assert [g["gpu"] for g in frame["gpus"] if g["state"] == "busy"] == list("0134567")
    assert (frame["machine"]["gpus"], frame["machine"]["gpus_expected"]) == (7, 8)


def test_a_hang_is_critical_and_marks_whom_the_others_wait_for() -> None:
    machine = watched("dgx-station-v100:training").run(30)
    machine.bench.machine.set_scenario("hang")
    frame = machine.run(90).frame()
    (job,) = machine.view.jobs().running
    assert job.hang is not None
    pid = job.pids[1]
    assert (frame["level"], frame["jobs"][0]["level"]) == ("wrong", "wrong")
    assert frame["jobs"][0]["title"] == f"job of pid {job.pids[0]}"
    assert frame["jobs"][0]["sentence"].startswith("hung for 1 min: it waits for rank 1 (pid")
    assert frame["headline"].startswith("4 GPUs hung for 1 min, waiting")
    assert frame["action"].startswith(f"Look at pid {pid} first with py-spy dump")
    assert {gpu["seconds"] for gpu in frame["gpus"]} == {round(job.hang.seconds)}
    note = f"the others wait for its process, pid {pid}"
    assert [gpu["note"] for gpu in frame["gpus"]] == ["", note, "", ""]


def test_a_job_is_marked_that_has_lost_a_gpu_and_one_that_ended_has_its_age() -> None:
    machine = watched("dgx-station-v100:training").run(14)
    machine.bench.machine.set_scenario("gpu-lost")
    frame = machine.run(15).frame()
    assert frame["jobs"][0]["sentence"].startswith("its GPU 2 is lost; ")
    assert frame["jobs"][0]["level"] == "wrong"
    assert "after its jobs have ended or saved a checkpoint" in frame["action"]
    machine = watched("dgx-station-v100:training").run(14)
    machine.bench.machine.set_scenario("idle")
    machine.run(2)
    ago = machine.frame()["ended"][0]["ago"]
    assert machine.run(5).frame()["ended"][0]["ago"] == ago + 5


def test_power_is_a_mean_for_it_swings_with_each_step() -> None:
    machine = watched("dgx-station-v100:starved-network").run(24)
    gpu = machine.frame()["gpus"][0]
    shown = next(meter["value"] for meter in gpu["meters"] if meter["name"] == "power")
    points = machine.view.samples.recent(power.POWER, gpu["gpu"], gpu["uuid"], seconds=10.0)
    assert shown == pytest.approx(fmean(points), abs=0.1)
    assert len({*points}) > 5


def test_a_driver_that_fell_silent_leaves_nothing_known() -> None:
    machine = watched("k40:training").run(5)
    last = machine.tick()
    later = replace(last, tick=last.tick + 1, at=last.at + 20, wall=last.wall + 20, verdicts={})
    machine.view.samples.take(later.at, ())
    machine.page_state.take(later, findings_document(machine.view))
    tick = whole(machine.page_state.machine(), machine.page_state.tick())
    assert tick["gpus"][0]["state"] is None
    assert {meter["value"] for meter in tick["gpus"][0]["meters"]} == {None}
    assert tick["level"] == "costly", "for 20 s: one late read"
    assert tick["headline"].startswith("The NVIDIA driver has not responded for ")


def test_a_machine_without_a_driver_is_reported_too(tmp_path: Path) -> None:
    bench = machines.laptop(tmp_path).run(2)
    host = Host(files=RealFiles(tmp_path), psutil=None)  # type: ignore[arg-type]
    hardware = Hardware(machines.no_driver, host)
    view = view_of(bench.agent, hardware)
    page_state = PageState(view)
    page_state.take(bench.agent.poller.latest, findings_document(view))
    machine = page_state.machine()
    tick = whole(machine, page_state.tick())
    assert (tick["level"], tick["gpus"], tick["uptime_seconds"]) == ("unknown", [], None)
    assert tick["headline"].startswith("No GPU is watched: ")
    assert machine["machine"]["gpus"] is None
    assert machine["graph"] == {"kind": "none", "expected": []}


def test_an_edition_lasts_until_something_seldom_changes() -> None:
    machine = watched("dgx-station-v100:training").run(6)
    known = findings_document(machine.view)
    machine.page_state.take(machine.page_state._snapshot, known)
    edition = machine.page_state.edition
    for _ in range(30):  # limits are worked out again meanwhile
        snapshot = machine.tick()
        machine.page_state.take(snapshot, known)
    assert machine.page_state.edition == edition
    cut_link(machine.bench.machine, 0, 2)
    machine.hurry().tick()
    machine.page_state.take(machine.page_state._snapshot, FindingsDocument(absent=[]))
    assert machine.page_state.edition > edition


def test_who_is_on_a_gpu_is_named_with_the_user_where_jobs_may_be() -> None:
    """The largest process of each GPU; elsewhere it is a pid alone."""
    named = ("python3", "researcher")
    for sections, expected in (((), ("", "")), ((JobConfig(info=True),), named)):
        frame = watched("dgx-station-v100:training", *sections).run(7).frame()
        shown = [(one["program"], one["user"]) for gpu in frame["gpus"] for one in gpu["processes"]]
        assert shown == [expected] * 4


def test_one_late_read_advises_nothing_and_pages_no_one() -> None:
    """A node was to be drained after 3 s: a read must be late for as long as the alert asks."""
    early, late = (banner(HeadlineFacts(silence=silence, gpus=[]))[0] for silence in (3.5, 160.0))
    assert (early.level, late.level) == ("costly", "wrong")
    assert early.action == "Nothing yet: a late read ends by itself. Act if it lasts for 2 min."
    assert late.action.startswith("Drain the node")
    assert early.notifies.endswith(" fires after 2 min")
    assert late.notifies == "alert DgxAgentBlind (critical: pages on-call immediately) fires now"
    machine = watched("dgx-station-v100:training").run(5)
    known = findings_document(machine.view)
    machine.bench.machine.set_scenario("gpu-slow")
    shown = []
    for _ in range(10):
        machine.run(10)
        known = findings_document(machine.view, known)
        shown += [one for one in known.documents if one["kind"] == "gpu_not_answering"]
    assert (shown[0]["severity"], shown[0]["action"][:11]) == ("info", "Nothing yet")
    assert "(warning: " in shown[0]["notifies"], "its alert is no milder"
    assert (shown[-1]["severity"], "nvidia-smi -q -i 1;" in shown[-1]["action"]) == (
        "warning",
        True,
    )
    assert len({one["since"] for one in shown}) == 1


def test_a_job_that_waits_in_bursts_has_one_headline_in_and_between_them() -> None:
    """Of the window; what the GPU does at this second stands apart."""
    machine = watched("k40:training").run(5)
    history = History(machine.view.diagnosis.inventory, machine.view.samples)
    machine.page_state._view = replace(machine.view, jobs=WatchedJobs)  # each scenario has its own
    said: set[str] = set()
    for scenario, seconds in [("training", 30), ("starved-disk", 15)] * 3:
        machine.bench.machine.set_scenario(scenario)
        for second in range(seconds):
            snapshot = machine.tick()
            history.take(snapshot)
            if said or (second > 12 and scenario == "starved-disk"):
                machine.page_state.take(snapshot, machine.page_state.known, history)
                (clause,) = machine.page_state.tick()["banner"]
                said.add(re.sub(r"\d+ (%|s|min)", "# \\1", clause["sentence"]))
                assert (clause["level"], clause["action"][:9]) == ("costly", "Read less")
    lead = "the GPU is starved by disk"
    assert all(one.startswith(lead) and ", # % of the last # " in one for one in said), said
    assert any(one.endswith(", busy now") for one in said), said


def test_the_headline_is_of_the_job_that_runs_and_names_why_gpus_cannot_be_judged() -> None:
    machine = watched("dgx-station-v100:starved-disk")
    history = History(machine.view.diagnosis.inventory, machine.view.samples)

    def shown(scenario: str, seconds: int) -> tuple[str, Document]:
        if scenario:
            machine.bench.machine.set_scenario(scenario)
        for _ in range(seconds):
            history.take(machine.tick())
        machine.page_state.take(machine.page_state._snapshot, machine.page_state.known, history)
        tick = machine.page_state.tick()
        return "; ".join(one["sentence"] for one in tick["banner"]), tick["gpus"][0]

    assert shown("starved-disk", 60)[0].startswith("4 GPUs starved by disk")
    shown("idle", 15)
    sentence, gpu = shown("training", 20)
    assert (sentence[:11], gpu["beside"]) == ("4 GPUs busy", ""), (
        "the job before lost, not this one"
    )
    sentence, gpu = shown("starved-disk", 8)
    assert re.search(r"% of the last \d s", sentence), sentence
    machine.bench.machine.driver.hung = True
    why = "cannot be judged: the driver does not respond (nvmlDeviceGetSamples: Timeout)"
    sentence, gpu = shown("", 25)
    assert (sentence, gpu["summary"]) == (f"4 GPUs {why} for 20 s", why)


def test_what_is_absent_is_named_by_its_labels_and_a_job_has_the_level_of_its_loss() -> None:
    """A link that is down has no counters; the five others of its GPU have."""
    machine = watched("dgx-1-v100:starved-disk+nvlink-down").run(4).hurry().run(8)
    machine.page_state.take(machine.tick(), findings_document(machine.view))
    frame = machine.frame()
    where = {row["metric"]: row["where"] for row in frame["absent"]}
    assert where["dgx_nvlink_link_received_bytes_total"] == "GPU 0 link 2; GPU 3 link 0"
    assert where["dgx_gpu_row_remap_pending"] == "GPUs 0-7"
    (job,) = (one for one in frame["events"] if one["job"])
    assert (job["level"], frame["jobs"][0]["level"]) == ("notice", "costly")
    assert frame["machine"]["started"] <= frame["timestamp"]
