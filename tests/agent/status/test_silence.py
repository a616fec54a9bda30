"""The start of a hang: one time in all places, at any speed of the clock."""

import asyncio
import math

import pytest

from agent.cli.assembly import Agent, simulated_hardware
from agent.cli.options import board_of
from agent.clock import TapeClock
from agent.config.settings import Settings
from agent.model import Reason
from agent.status.model import FindingStatus, HeadlineClause, Status


def statuses(name: str, seconds: float, speed: float = 1.0, before: float = 0.0) -> list[Status]:
    """The statuses of a simulated machine, whose agent starts after `before` seconds, at every
    tick in which something is wrong."""
    clock, found = TapeClock(speed), list[Status]()
    hardware = simulated_hardware(name, clock)
    clock.skip(before)
    agent = Agent(Settings(), hardware, clock)
    board = board_of(agent, hardware)
    agent.poller.listeners.append(lambda _: found.append(board.status()))
    asyncio.run(agent.poller.run(lambda: clock.monotonic() > seconds))
    return [one for one in found if one.headline[0].do]


def starts(found: list[Status], kind: str) -> set[tuple[float, bool]]:
    """The starts of a hang relative to that of the agent, in the headline and in the finding, and
    whether it may have begun before."""
    kinds = {one.id: one.kind for status in found for one in status.findings}
    clauses = (status.headline[0] for status in found)
    told: list[HeadlineClause | FindingStatus] = [
        one for one in clauses if {kind} >= {kinds[name] for name in one.findings}
    ]
    told += [one for status in found for one in status.findings if one.kind == kind]
    begun = found[0].at.timestamp() - found[0].second
    return {(round(one.since.timestamp() - begun), one.or_before) for one in told if one.since}


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_a_hang_has_one_start_and_lasts_as_long_as_the_clock_says(speed: float) -> None:
    """The driver hangs after 5 s. It is late after 3 s, and stalled after 5 s, of real time."""
    found = statuses("k40:driver-hang", 60.0 + 20.0 * speed, speed)
    ((start, older),) = starts(found, "driver_hangs")
    assert (math.isclose(start, 5.0, abs_tol=speed + 1.0), older) == (True, False)
    last = found[-1]
    assert last.second - start == pytest.approx(60.0 + 20.0 * speed - 5.0, abs=speed + 2.0)
    minutes = (last.at - (last.headline[0].since or last.at)).total_seconds() // 60
    assert last.headline[0].text == f"The NVIDIA driver has not responded for {minutes:.0f} min"


def test_a_driver_that_never_answered_may_have_hung_before() -> None:
    found = statuses("k40:driver-hang", 60.0, before=30.0)
    ((start, older),) = starts(found, "driver_hangs")
    assert (abs(start - 30.0) <= 1.0, older) == (True, True)
    assert found[-1].machine.text.endswith(", its NVIDIA driver does not respond")
    unknown = {x.metric: x.reason for x in found[-1].absences}
    assert unknown["dgx_gpu_xid_errors_total"] is unknown["dgx_system_gpus"] is Reason.STALLED


def test_values_that_went_missing_were_there_before() -> None:
    """At this speed, they expire before the driver counts as silent."""
    found = [x for one in statuses("k40:driver-hang", 45.0, 10.0) for x in one.findings]
    assert {(one.kind, one.or_before) for one in found} == {("values_absent", False)}


def test_a_gpu_that_does_not_answer_has_one_start() -> None:
    found = statuses("dgx-station-v100:gpu-slow", 40.0)
    ((start, older),) = starts(found, "gpu_not_answering")
    assert (abs(start - 5.0) <= 1.5, older) == (True, False)


def test_a_gpu_that_never_answered_has_its_place() -> None:
    *_, status = statuses("dgx-station-v100:gpu-slow", 50.0, before=30.0)
    assert [gpu.faulty for gpu in status.gpus] == [False, True, False, False]
    assert status.headline[1].text == "GPUs 0, 2 and 3 busy; GPU 1 cannot be judged"
