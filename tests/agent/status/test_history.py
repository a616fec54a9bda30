"""The ring of the last 15 minutes: every second once, gaps as gaps, and no more memory ever."""

import tracemalloc
from array import array
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest

from agent.jobs.job import WatchedJobs
from agent.model import Cause, Snapshot, State
from agent.status.gpus import judged
from agent.status.history import GAPS, MOST_GPUS, SERIES, SPAN, STATES, History, ValueHistory
from tests.support.machine_controls import lose, restore
from tests.support.statuses import Shown
from tests.support.statuses import shown as machine_of

Document = dict[str, Any]


def history_of(machine: Shown) -> History:
    source = machine.board.source
    return History(source.diagnosis.inventory, source.samples)


def played(machine: Shown, seconds: int, history: History | None = None) -> History:
    history = history or history_of(machine)
    for _ in range(seconds):
        history.take(machine.tick())
    return history


def later(snapshot: Snapshot, seconds: float) -> Snapshot:
    """The same once more, so many seconds on."""
    at, wall = snapshot.at + seconds, snapshot.wall + seconds
    return replace(snapshot, tick=snapshot.tick + 1, at=at, wall=wall)


OWN = [tracemalloc.Filter(True, "*/status/history.py")]


def codes(text: str, size: int = 1) -> list[int]:
    return list(array("B" if size == 1 else "H", b64decode(text)))


def states(document: Document, uuid: str) -> list[str | None]:
    return [document["states"][code] for code in codes(document["gpus"][uuid]["state"])]


def values(document: Document, uuid: str, name: str) -> list[float | None]:
    series = document["series"][name]
    found = codes(document["gpus"][uuid][name], series["bytes"])
    return [None if code == series["gap"] else code * series["scale"] for code in found]


def only_gpu(machine: Shown) -> str:
    return machine.board.source.diagnosis.inventory().gpus[0].uuid


def test_codes_mean_what_was_read() -> None:
    machine = machine_of("k40:training")
    history = played(machine, 6)
    document, uuid = history.document(), only_gpu(machine)
    assert (document["whole"], document["newest"], document["slots"]) == (True, 5, 6)
    assert states(document, uuid)[-1] == "busy/none"
    now = machine.status.gpus[0].figures
    shown = {
        "activity": now.activity_ratio,
        "memory": now.memory_used_bytes,
        "power": now.power_watts,
        "temperature": now.temperature_celsius,
    }
    for series in SERIES:
        latest = values(document, uuid, series.name)[-1]
        assert latest == pytest.approx(shown[series.name], abs=series.scale)
    assert {len(values(document, uuid, series.name)) for series in SERIES} == {6}


def test_a_second_has_its_shares() -> None:
    machine = machine_of("dgx-h100:exposed-communication", gpus=2)
    document, uuid = played(machine, 30).document(), only_gpu(machine)
    scale = document["series"]["share"]["scale"]
    shares = document["gpus"][uuid]["shares"]
    last = {pair: codes(text)[-1] * scale for pair, text in shares.items()}
    shown = machine.status.gpus[0].shares
    for pair in {*last, *shown}:
        assert last.get(pair, 0.0) == pytest.approx(shown.get(pair, 0.0), abs=scale)
    assert sum(last.values()) == pytest.approx(1.0, abs=3 * scale)
    assert last["communicating/nvlink"] > 0.2


def test_a_tick_that_is_late_stands_for_what_it_missed_and_a_gap_stays_one() -> None:
    machine = machine_of("k40:training")
    uuid = only_gpu(machine.run(4))
    history = played(machine, 1)
    machine.bench.clock.advance(1.0)  # one second without a tick
    played(machine, 1, history)
    assert states(history.document(), uuid)[-3:] == ["busy/none"] * 3
    machine.bench.clock.advance(5.0)
    played(machine, 2, history)
    assert states(history.document(), uuid)[-9:] == [
        "busy/none",
        "busy/none",
        *[None] * 6,  # the time before the first tick was not observed
        "busy/none",
    ]
    assert values(history.document(), uuid, "power")[-7:-2] == [None] * 5


def test_a_second_that_comes_twice_is_written_once() -> None:
    machine = machine_of("k40:training")
    history = played(machine, 4)
    again = later(machine.tick(), -0.5)
    history.take(again)
    history.take(again)
    assert history.document()["slots"] == 4


def test_a_gpu_that_is_lost_and_back_is_one_gpu_with_its_loss() -> None:
    machine = machine_of("dgx-h100:training", gpus=2)
    history = played(machine, 4)
    uuid = machine.board.source.diagnosis.inventory().gpus[1].uuid
    lose(machine.bench.machine, 1)
    played(machine, 4, history)
    restore(machine.bench.machine, 1)
    played(machine, 35, history)
    line = states(history.document(), uuid)
    assert line[3] == "busy/none"
    assert "lost/none" in line[4:], "a loss is drawn, and is no gap"
    assert line[-1] == "busy/none"
    assert len(history.gpus) == 2


def test_what_was_missed_is_reported_alone() -> None:
    machine = machine_of("k40:training")
    history = played(machine, 10)
    uuid = only_gpu(machine)
    whole, part = history.document(), history.document(since=6)
    assert (part["whole"], part["newest"], part["slots"]) == (False, 9, 3)
    assert states(part, uuid) == states(whole, uuid)[-3:]
    assert history.document(since=9)["slots"] == 0
    assert history.document(since=99)["whole"], "a second that is yet to come is of another run"
    assert history.document(since=9 - SPAN - 1)["whole"]


def test_the_ring_holds_its_span_and_no_more() -> None:
    machine = machine_of("k40:training")
    history = played(machine, 3)
    last, uuid = machine.tick(), only_gpu(machine)
    for second in range(SPAN + 50):
        history.take(later(last, second))
    document = history.document()
    assert document["slots"] == SPAN
    assert document["newest"] == last.at + SPAN + 49
    assert len(states(document, uuid)) == SPAN
    assert {len(values(document, uuid, series.name)) for series in SERIES} == {SPAN}


def test_sixteen_gpus_fit_in_half_a_megabyte_for_ever() -> None:
    machine = machine_of("sixteen:training").run(4)
    last = machine.tick()
    tracemalloc.start()
    try:
        history = history_of(machine)
        for second in range(SPAN):
            history.take(later(last, second))
        full = tracemalloc.take_snapshot().filter_traces(OWN)
        for second in range(SPAN, SPAN + 300):  # an object a tick would be 4 KiB
            history.take(later(last, second))
        after = tracemalloc.take_snapshot().filter_traces(OWN)
    finally:
        tracemalloc.stop()
    sizes = [sum(trace.size for trace in taken.traces) for taken in (full, after)]
    print(f"ring of 16 GPUs: {sizes[0] / 1024:.0f} KiB")
    assert sizes[0] <= 512 * 1024
    assert sizes[1] <= sizes[0] + 1024


def test_gpus_that_come_and_go_are_bounded_and_forgotten() -> None:
    machine = machine_of("k40:training")
    history = played(machine, 4)
    last = machine.tick()
    for number in range(2 * MOST_GPUS):
        inventory = machine.bench.agent.gpus.inventory
        one = replace(inventory.gpus[0], uuid=f"GPU-{number}")
        machine.bench.agent.gpus.inventory = replace(inventory, gpus=(one,))
        history.take(later(last, number))
    assert len(history.gpus) == MOST_GPUS
    for second in range(2 * MOST_GPUS, 2 * SPAN + 1):
        history.take(later(last, second))
    assert len(history.gpus) <= 2


def test_the_mean_of_shares_of_ten_seconds_counts_each_second_once() -> None:
    """A GPU is busy for 30 s, then starved: shares of ten seconds lag behind."""
    kept, busy, starved = ValueHistory(), (State.BUSY, Cause.NONE), (State.STARVED, Cause.DISK)
    for second in range(55):
        part = min(max(0, second - 29), 10) / 10
        kept.put([second], STATES[busy], GAPS, {starved: part, busy: 1 - part})
    means = [kept.window(second, seconds)[0] for second, seconds in [(34, 15), (44, 20), (54, 55)]]
    assert [found[starved] for found in means] == pytest.approx([0.5, 0.75, 0.5], abs=0.005)


def test_times_last_longer_than_the_ring() -> None:
    machine, kept = machine_of("dgx-h100:training", gpus=1), ValueHistory()
    history, disk = played(machine, 4), (State.STARVED, Cause.DISK)
    blind = replace(machine.tick(), verdicts={})
    for second in range(2 * SPAN):
        history.take(later(blind, second))
        kept.note(second, {disk: float(second % SPAN < 10)})
    (gpu,) = judged(machine.board.source, history, later(blind, 2 * SPAN), WatchedJobs())
    assert gpu.seconds == pytest.approx(2 * SPAN, abs=2)
    assert [first for first, _ in kept.large.values()] == [0, SPAN]
