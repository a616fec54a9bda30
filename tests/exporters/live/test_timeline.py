"""Entries of the page's timeline for the last 24 hours."""

from dataclasses import replace

from agent.model import Figure, Finding, Severity
from exporters.live.findings_document import findings_document
from exporters.live.timeline import BRIDGED, KEPT, MOST, Stretch, Timeline
from tests.support.live_machines import Document, Watched, watched


class Looks:
    """The looks of a feed at one machine, 20 s apart."""

    def __init__(self, machine: Watched) -> None:
        self.machine, self.known = machine, findings_document(machine.view)

    def play(self, scenario: str, seconds: int) -> list[Document]:
        self.machine.bench.machine.set_scenario(scenario)
        for _ in range(seconds // 20):
            self.machine.run(20)
            self.known = findings_document(self.machine.view, self.known)
        snapshot, jobs = self.machine.view.latest(), self.machine.view.jobs()
        receipts = [*(job.receipt for job in jobs.running), *jobs.ended]
        return self.known.timeline.document(snapshot.at, receipts)


def of_text(events: list[Document], part: str) -> Document:
    (found,) = [event for event in events if part in event["text"]]
    return found


def test_a_state_of_all_gpus_is_one_event_with_both_its_ends() -> None:
    looks = Looks(watched("dgx-station-v100:training").run(5))
    assert [one["level"] for one in looks.play("training", 40)] == ["notice"], "the job alone"
    began = looks.machine.view.latest().wall
    event = of_text(looks.play("starved-disk", 80), "starved by disk")
    assert event["text"] == "GPUs 0-3: starved by disk"
    assert (event["level"], event["until"]) == ("costly", None)
    assert abs(event["since"] - began) < 20
    ended = looks.machine.view.latest().wall
    events = looks.play("training", 120)
    event = of_text(events, "starved by disk")
    assert abs(event["until"] - ended) < 40
    jobs = [one for one in events if one["job"]]
    assert jobs[0]["until"] is None
    assert [one["since"] for one in events] == sorted((e["since"] for e in events), reverse=True)


def test_a_fault_stays_on_the_list_after_it_is_over() -> None:
    looks = Looks(watched("dgx-station-v100:training").run(5))
    looks.play("training", 20)
    events = looks.play("gpu-lost", 40)
    assert "GPU 2: XID 79" in of_text(events, "XID")["text"]
    assert " ago" not in of_text(events, "XID")["text"], "that would not stay true"
    lost = of_text(looks.play("training", 120), "GPU 2 not among them")
    assert lost["level"] == "wrong"
    assert 20 <= lost["until"] - lost["since"] <= 60


def test_what_was_there_at_the_start_has_no_beginning() -> None:
    looks = Looks(watched("dgx-station-v100:nvlink-down").run(20))
    assert of_text(looks.play("nvlink-down", 40), "NVLink 2")["since"] is None


def test_the_list_is_bounded_in_number_and_age() -> None:
    machine = watched("k40:idle").run(2)
    latest = machine.view.latest()
    old = Stretch(0.0, latest.wall - KEPT - 1.0, latest.at - KEPT, "wrong", "long over")
    late = latest.at - BRIDGED - 1.0
    new = [Stretch(0.0, latest.wall - 100.0, late, "wrong", f"{n}") for n in range(2 * MOST)]
    standing = {("kind", "", str(place)): one for place, one in enumerate([old, *new])}
    after = Timeline(0.0, standing).looked(latest, ())
    assert not after.standing
    assert len(after.over) == MOST
    assert "long over" not in {one.text for one in after.over}


def test_late_reads_do_not_split_one_fault_into_many_events() -> None:
    """Fault and state go on through looks that came late, or saw nothing of that GPU; the row and
    the list have one beginning."""
    looks = Looks(watched("k40:training").run(5))
    looks.play("training", 20)
    looks.play("pcie-degraded", 40)
    looks.machine.run(150)
    looks.play("pcie-degraded", 20)
    snapshot = looks.machine.view.latest()
    timeline, wrong = looks.known.timeline, looks.known.findings
    (lanes,) = (one for one in wrong if one.kind == "pcie_lanes")
    figures = (Figure("metrics", 9.0, None, "count"),)
    silent = Finding("gpu_not_answering", Severity.WARNING, lanes.gpu, figures=figures)
    for second in range(20, 220, 20):
        at, wall = snapshot.at + second, snapshot.wall + second
        later = replace(snapshot, at=at, wall=wall, verdicts={})
        timeline = timeline.looked(later, [silent] if second < 200 else wrong)
    events = timeline.document(later.at, ())
    event = of_text(events, "PCIe link")
    assert (event["since"], event["until"]) == (timeline.since(lanes), None)
    assert event["since"] == looks.known.documents[0]["since"]
    assert sum("driver calls" in one["text"] for one in events) == 1


def test_no_job_is_well_while_the_driver_hangs() -> None:
    machine = watched("k40:training").run(20)
    job, snapshot = machine.view.jobs().running[0].receipt, machine.view.latest()
    hangs = [Finding("driver_hangs", Severity.CRITICAL)]
    for wrong, running in (([], "notice"), (hangs, "unknown")):
        timeline = Timeline().looked(snapshot, wrong)
        jobs = [job, replace(job, ended=snapshot.wall)]
        shown = {bool(e["until"]): e["level"] for e in timeline.document(snapshot.at, jobs)}
        assert shown == {False: running, True: "good"}


def test_one_late_read_is_no_event() -> None:
    snapshot = watched("k40:training").run(2).view.latest()
    late = [Finding("source_down", Severity.WARNING, device="power")]
    timeline = Timeline().looked(snapshot, ())
    for second in range(20, 260, 20):
        looked = replace(snapshot, at=snapshot.at + second, wall=snapshot.wall + second)
        timeline = timeline.looked(looked, late if second < 60 else ())
        shown = [one["level"] for one in timeline.document(looked.at, ())]
        assert shown == []
    for second in range(280, 440, 20):
        looked = replace(snapshot, at=snapshot.at + second, wall=snapshot.wall + second)
        timeline = timeline.looked(looked, late)
        shown += [one["level"] for one in timeline.document(looked.at, ())]
    assert shown == ["notice"] * 3 + ["costly"] * 2, "as grave as its row: once its alert fires"
