"""The short form of the healthy day: whatever happens on a sound machine, nothing is reported."""

import pytest

from tests.alerts.healthy_day import (
    DAY,
    Part,
    judge,
    miss_one,
    miss_two,
    reboot,
    reload,
    reload_beneath,
    reset,
    restart,
)
from tests.support.nightly import NIGHTLY

pytestmark = pytest.mark.promtool

FASTER = 30
HAPPENINGS = (restart, miss_one, reboot, miss_two, reset, reload, reload_beneath)
HOURS = tuple(
    part
    for happening in HAPPENINGS
    for part in (Part(12, "idle", happening), Part(12, "training", happening))
)


def test_all_of_a_day_happens_in_the_short_form_too() -> None:
    assert {part.before for part in DAY} == {None, *HAPPENINGS}


def test_nothing_is_reported_a_healthy_machine() -> None:
    assert judge("gtx-1080", FASTER, HOURS) == []


def test_what_is_wrong_is_reported() -> None:
    """The judge is awake."""
    wrong = judge("gtx-1080", FASTER, (Part(20, "idle"), Part(20, "training+xid-31")))
    assert {alert.name for alert in wrong} == {"DgxGpuXid"}


@NIGHTLY
def test_nothing_is_reported_a_healthy_day() -> None:
    assert judge("k40") == []
