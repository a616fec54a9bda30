"""Reads: what one costs when it fails, and when it runs next."""

from collections.abc import Sequence

import pytest

from agent.clock import SystemClock
from agent.hardware.device import NvmlDevice, Scope
from agent.model import GPU_LABELS, Absent, Metric, Reading, ReadKey, Reason, Snapshot
from agent.polling.reads import (
    GpuRow,
    GpuRows,
    Read,
    ReadCosts,
    ReadOutput,
    ReadSchedule,
    fixed,
    is_pending,
    perform,
    plan,
)
from agent.polling.worker import Finished
from tests.support.frozen_clock import FrozenClock

POWER = Metric("dgx_gpu_power_watts", "Power.", "a call", GPU_LABELS)
CLOCK = Metric("dgx_gpu_clock_hertz", "Clock.", "a call", (*GPU_LABELS, "clock"))
GPU = ("0", "GPU-0")


class Card(NvmlDevice):
    """A device that answers numbers, or refuses, and keeps what it was asked."""

    def __init__(self, **answers: float | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def get(self, call: str, *args: object, **options: object) -> float:
        self.asked.append(call)
        answer = self.answers[call]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fields(self, questions: Sequence[Scope]) -> list[float | Absent]:
        self.asked.append("fields")
        answers = [self.answers[str(field)] for field, _ in questions]
        return [one for one in answers if isinstance(one, float | Absent)]


MEMORY = 82
ROWS = (
    GpuRow(POWER, ("power",), per=2),
    GpuRow(CLOCK, lambda card: card.number("sm"), ("sm",)),
    GpuRow(CLOCK, (MEMORY, 0), ("memory",), times=2),
    GpuRow(CLOCK, (230, 1), ("module",)),
)
ANSWERS: dict[str, float] = {"power": 500, "sm": 1e9, str(MEMORY): 1e9, "230": 3.0}


def turn(rows: GpuRows) -> ReadOutput:
    out = ReadOutput(0.0, GPU)
    rows.read(out)
    return out


def test_a_reason_that_stands_for_many_values_keeps_no_frame() -> None:
    """Each frame holds on to a snapshot: a reason raised once a tick let the agent grow."""
    why = Absent(Reason.UNSUPPORTED, "the kernel counts none")
    out = ReadOutput(0.0)
    out.add(POWER, why, *GPU)
    assert why.__traceback__ is None
    assert [one.reason for one in out.absences] == [Reason.UNSUPPORTED]


def test_rows_put_the_labels_of_the_read_first_and_ask_fields_at_once() -> None:
    card = Card(**ANSWERS)
    out = turn(GpuRows(card, lambda: ROWS))
    assert [(s.metric, s.labels, s.value) for s in out.samples] == [
        (POWER, GPU, 250.0),
        (CLOCK, (*GPU, "sm"), 1e9),
        (CLOCK, (*GPU, "memory"), 2e9),
        (CLOCK, (*GPU, "module"), 3.0),
    ]
    assert out.absences == []
    assert card.asked == ["fields", "power", "sm"]


@pytest.mark.parametrize("reason", [Reason.UNSUPPORTED, Reason.DENIED, Reason.STALLED])
@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_refused_costs_itself_and_is_asked_again(reason: Reason, name: str) -> None:
    card = Card(**ANSWERS | {name: Absent(reason)})
    rows = GpuRows(card, lambda: ROWS)
    first = turn(rows)
    assert len(first.samples) == 3
    assert [a.reason for a in first.absences] == [reason]
    card.answers[name] = 251.0
    assert len(turn(rows).samples) == 4


def test_rows_know_whether_any_was_answered() -> None:
    card = Card(**dict.fromkeys(ANSWERS, Absent(Reason.UNSUPPORTED)))
    rows = GpuRows(card, lambda: ROWS)
    turn(rows)
    assert not rows.answered
    card.answers["sm"] = 1e9
    turn(rows)
    assert rows.answered


@pytest.mark.parametrize("reason", [Reason.LOST, Reason.NO_DRIVER])
def test_a_gpu_that_is_lost_ends_its_table(reason: Reason) -> None:
    card = Card(**ANSWERS | {"power": Absent(reason)})
    with pytest.raises(Absent) as caught:
        turn(GpuRows(card, lambda: ROWS))
    assert caught.value.reason is reason
    assert "sm" not in card.asked


def read_of(run: object, every: float = 1.0, **options: float) -> Read:
    key = ReadKey("power", "draw", "GPU-0")
    return Read(key, (POWER, CLOCK), run, fixed(every), GPU, **options)  # type: ignore[arg-type]


def test_a_read_that_answers_becomes_a_reading() -> None:
    clock = FrozenClock()
    clock.advance(3.0)
    read = read_of(lambda out: out.add(POWER, 250), every=2.0)
    reading, raised = perform(read, clock, ReadCosts())
    assert reading.key == read.key
    assert (reading.at, reading.every, reading.failure) == (3.0, 2.0, None)
    assert [tuple(s) for s in reading.samples] == [(POWER, GPU, 250.0)]
    assert raised is None
    assert read.due == 5.0


def test_what_a_read_raises_makes_all_of_it_absent() -> None:
    def run(out: ReadOutput) -> None:
        out.add(POWER, 250)
        raise Absent(Reason.LOST, "it fell off the bus")

    reading, raised = perform(read_of(run), FrozenClock(), ReadCosts())
    assert reading.samples == ()
    assert [(a.metric, a.labels, a.reason) for a in reading.absences] == [
        (POWER, GPU, Reason.LOST),
        (CLOCK, GPU, Reason.LOST),
    ]
    assert reading.failure is None, "an answer, if a sad one"
    assert raised is not None
    assert str(raised) == "it fell off the bus"


def test_a_surprise_is_described_with_its_place_and_costs_that_read_alone() -> None:
    def run(_: ReadOutput) -> None:
        raise ZeroDivisionError("by nothing")

    reading, raised = perform(read_of(run), FrozenClock(), ReadCosts())
    assert reading.failure is not None
    assert (reading.failure.type, reading.failure.message) == ("ZeroDivisionError", "by nothing")
    assert "test_reads.py:" in reading.failure.place
    assert str(reading.failure).startswith("ZeroDivisionError: by nothing (")
    assert raised is not None
    assert raised.reason is Reason.FAILED
    assert {a.detail for a in reading.absences} == {str(reading.failure)}


def test_price_adds_up_by_source() -> None:
    read_costs = ReadCosts()
    for _ in range(3):
        perform(read_of(lambda _: sum(range(20_000))), SystemClock(), read_costs)
    assert min(read_costs.by_source["power"]) > 0
    assert list(read_costs.by_source) == ["power"]


def test_devices_take_turns_after_their_first_read() -> None:
    reads = [read_of(None, every=60.0, stagger=n / 4) for n in range(4)]
    for read in reads:
        plan(read, 0.0, pending=False)
    assert [read.due for read in reads] == [60.0, 45.0, 30.0, 15.0]
    for read in reads:
        plan(read, read.due, pending=False)
    assert [read.due for read in reads] == [120.0, 105.0, 90.0, 75.0]


def test_a_turn_that_takes_long_brings_no_devices_together() -> None:
    reads = [read_of(None, every=4.0, stagger=n / 8) for n in range(8)]
    now = 0.0
    for _ in range(5):  # each read takes so long that all are late
        for read in reads:
            plan(read, now, pending=False)
            now += 1.0
    places = sorted(read.due % 4.0 for read in reads[1:])
    assert places == pytest.approx([0.5 * n for n in range(1, 8)])


@pytest.mark.parametrize("late", [0.0, -0.04, 0.04, 0.9])
def test_a_read_keeps_its_beat_whether_its_tick_is_early_or_late(late: float) -> None:
    read = read_of(None, every=5.0, stagger=0.375)
    plan(read, 0.0, pending=False)
    dues = []
    for _ in range(4):
        dues.append(read.due)
        plan(read, read.due + late, pending=False)
    assert dues == pytest.approx([3.125, 8.125, 13.125, 18.125])


def test_a_pending_read_is_due_at_once_and_has_not_run() -> None:
    clock = FrozenClock()

    def run(out: ReadOutput) -> None:
        out.pending = True

    read = read_of(run, every=60.0)
    clock.advance(7.0)
    reading, _ = perform(read, clock, ReadCosts())
    assert is_pending(read, reading)
    assert (read.due, read.runs) == (7.0, 0)


def test_an_agenda_runs_what_is_due_and_keeps_what_a_pending_read_said() -> None:
    clock = FrozenClock()
    silent = False

    def run(out: ReadOutput) -> None:
        out.pending = silent
        if not silent:
            out.add(POWER, 250)

    slow = read_of(lambda out: out.add(POWER, 1), every=5.0)
    schedule = ReadSchedule([read_of(run), slow], clock, ReadCosts())
    emitted: list[Finished] = []
    assert not schedule.complete()
    schedule.run(emitted.append)
    assert schedule.complete()
    clock.advance(0.96)
    schedule.run(emitted.append)
    assert len(emitted) == 3, "a tick is never exactly on time"
    silent = True
    clock.advance(1.0)
    schedule.run(emitted.append)
    schedule.run(emitted.append)
    assert len(emitted) == 3


def test_data_expires_after_three_beats_and_is_then_stalled() -> None:
    read = read_of(lambda out: out.add(POWER, 250), every=2.0)
    reading, _ = perform(read, FrozenClock(), ReadCosts())
    snapshot = Snapshot(1, 0.0, 0.0, {reading.key: reading})
    assert [s.value for s in snapshot.samples(6.0)] == [250.0]
    assert list(snapshot.absences(6.0)) == []
    assert list(snapshot.samples(6.01)) == []
    assert [(a.metric, a.labels, a.reason) for a in snapshot.absences(6.01)] == [
        (POWER, GPU, Reason.STALLED)
    ]
    assert isinstance(reading, Reading)
