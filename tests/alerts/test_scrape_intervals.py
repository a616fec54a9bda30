"""Rules about agents and old events hold however a machine is scraped: seldom, beside the
evaluation, with scrapes that fail; after restarts of agent and Prometheus, and in Prometheus 3,
whose ranges are open on the left."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from agent.faults.promql import seconds
from agent.sources import gpu, xid
from agent.sources.agent_health import LAST_TICK
from alerts.build import DOWN
from tests.support import alert_input
from tests.support.alert_input import SCRAPE, Case, Points, Series, named, on, scrapes, steady
from tests.support.alert_replay import judged
from tests.support.nightly import NIGHTLY

S = alert_input.SYSTEMS[0]
BLIND, XID = "DgxAgentBlind", "DgxGpuXid"
STUCK = ({"severity": "warning", "sign": "ticks"},)
INTERVALS = (5, 15, 30, 60, 120)
RANGE = re.compile(r"(?<=\[)\w+(?=\])")


def left_open(rules: str) -> str:
    """Ranges without their first instant, as Prometheus 3 reads them: the samples here lie on whole
    seconds."""
    return RANGE.sub(lambda found: f"{round(seconds(found[0]) * 1000) - 1}ms", rules)


def failing(folder: Path, cases: Iterable[Case], evaluated: int, *, is_open: bool) -> str:
    """Return the faults that promtool finds if rules are evaluated every so many seconds."""
    found = list(cases)
    alerts, tests = {case.alert for case in found}, map(alert_input.group, found)
    return judged(folder, alerts, evaluated, tests, left_open if is_open else str)


def in_turn(*evaluated: int) -> pytest.MarkDecorator:
    """Every so many seconds in Prometheus 2 and 3; in the short form in one of them, in turn."""
    return pytest.mark.parametrize(
        ("evaluated", "is_open"),
        [
            pytest.param(
                every,
                is_open,
                id=f"{every}-Prometheus {2 + is_open}",
                marks=[] if number % 2 == is_open else NIGHTLY,
            )
            for number, every in enumerate(evaluated)
            for is_open in (False, True)
        ],
    )


def ticking(every: int, *parts: tuple[float, float]) -> Series:
    return {named(LAST_TICK): alert_input.growing(*parts, start=1.7e9, every=every)}


@pytest.mark.promtool
@in_turn(60, 17)
def test_only_an_agent_that_stands_is_blind(evaluated: int, is_open: bool, tmp_path: Path) -> None:
    cases = []
    for every in INTERVALS:
        healthy = ticking(every, (30, 1.0))
        half = {
            name: [p if at % 2 else None for at, p in enumerate(points)]
            for name, points in healthy.items()
        }
        cases += [
            Case(BLIND, f"healthy, each {every} s", healthy, every=every),
            Case(BLIND, f"half of the scrapes fail, each {every} s", half, every=every),
            Case(
                BLIND, f"stands, each {every} s", ticking(every, (10, 1.0), (8, 0.0)), STUCK, every
            ),
        ]
    assert failing(tmp_path, cases, evaluated, is_open=is_open) == ""


@pytest.mark.promtool
@in_turn(60, 17)
def test_only_an_agent_that_misses_three_scrapes_is_down(
    evaluated: int, is_open: bool, tmp_path: Path
) -> None:
    silent = ({"severity": "critical", "sign": "silence"},)
    sometimes = ({"severity": "warning", "sign": "sometimes"},)
    cases = []
    for every in (*INTERVALS, 90):
        there: Points = [1.0] * scrapes(30, every)
        third: Points = [1.0, 1.0, 0.0] * (len(there) // 3)
        minutes = 4 if every <= 60 else 8
        reboot: Points = [*[0.0] * scrapes(10, every), *[1.0] * scrapes(15, every)]
        cases += [
            Case(DOWN, f"{title}, each {every} s", {named("up"): points}, fires, every)
            for title, points, fires in (
                ("two scrapes fail", [*there, 0.0, 0.0], ()),
                ("every third scrape fails", third, sometimes),
                ("a reboot", [*there[: -len(there) // 3], *reboot], ()),
                (f"silent for {minutes} min", [*there, *[0.0] * scrapes(minutes, every)], silent),
            )
        ]
    assert failing(tmp_path, cases, evaluated, is_open=is_open) == ""


def shown(code: int, *numbers: tuple[int, Points]) -> Series:
    """Errors of one GPU under these numbers, on an agent that is scraped all the time."""
    length = max(len(points) for _, points in numbers)
    one = {"uuid": "GPU-a", "xid": str(code)}
    return {
        **{named(xid.XID_ERRORS, gpu=str(number), **one): points for number, points in numbers},
        named(gpu.INFO, gpu="1", uuid="GPU-a", model="x"): [1.0] * length,
        named(LAST_TICK): [1.7e9 + SCRAPE * at for at in range(length)],
    }


def absent(minutes: float) -> Points:
    return [None] * scrapes(minutes)


@pytest.mark.promtool
@in_turn(60)
def test_an_old_xid_is_reported_once(evaluated: int, is_open: bool, tmp_path: Path) -> None:
    fires = ({**on(S, "warning", xid="999", action="service", sign="unlisted"), "uuid": "GPU-a"},)
    old, first = steady(2.0, 10), [*absent(20), *steady(1.0, 5)]
    long_old = steady(2.0, 90)
    moved = shown(999, (2, long_old), (1, [*absent(90.25), *old]))
    both = shown(999, (2, old), (1, [*absent(10.25), *old]))
    lower = [*steady(3.0, 60), None, None, *steady(0.0, 10)]
    cases = [
        Case(XID, "of before Prometheus began", shown(999, (1, old))),
        Case(XID, "its GPU has another number", moved),
        Case(XID, "its GPU has another number, Prometheus has just begun", both),
        Case(XID, "its first, soon after Prometheus began", shown(999, (1, first)), fires),
        Case(XID, "the agent began again", shown(48, (1, lower))),
    ]
    assert failing(tmp_path, cases, evaluated, is_open=is_open) == ""
