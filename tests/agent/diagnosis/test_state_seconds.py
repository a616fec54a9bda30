"""The account of one GPU: the pair that leads, and every second once."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.state_seconds import LEADS_AFTER, SecondsByState
from agent.model import BUSY, PAIRS, Cause, Pair, State

DISK: Pair = (State.STARVED, Cause.DISK)
HUNG: Pair = (State.HUNG, Cause.NONE)


def test_what_is_lost_is_counted_however_little_it_is() -> None:
    account = SecondsByState()
    for now in range(600):
        account.enter({DISK: 0.02, BUSY: 0.98}, 1.0, float(now))
    assert account.seconds[DISK] == pytest.approx(12.0)
    assert account.seconds[BUSY] == pytest.approx(588.0)


def leaders(parts: list[dict[Pair, float]]) -> list[Pair | None]:
    """Return the leading pair after each of these seconds."""
    account = SecondsByState()
    found = []
    for now, part in enumerate(parts, 1):
        account.enter(part, 1.0, float(now))
        found.append(account.leader)
    return found


def changes(found: list[Pair | None]) -> int:
    return sum(one != other for one, other in pairwise(found))


@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.5, 0.8, 0.95])
def test_no_activity_makes_the_leader_flap(threshold: float) -> None:
    dice = random.Random(1)
    hour = [min(1.0, max(0.0, dice.gauss(threshold, 0.05))) for _ in range(3600)]
    found = leaders([{BUSY: active, DISK: 1 - active} for active in hour])
    if threshold == 0.5:  # as even as can be: each lead lasts three seconds at the least
        lengths, since = [], 0
        for place in range(1, len(found)):
            if found[place] != found[place - 1]:
                lengths.append(place - since)
                since = place
        assert min(lengths) >= LEADS_AFTER
    else:
        assert changes(found) == 0


def test_a_new_pair_leads_once_its_share_has_been_the_largest_for_three_seconds() -> None:
    found = leaders([{BUSY: 1.0}] * 20 + [{DISK: 1.0}] * 20)
    assert changes(found) == 1
    first = found.index(DISK) + 1 - 20
    assert first == 10 // 2 + LEADS_AFTER, "half of the window and one more, held for three"


def test_short_stalls_do_not_lead() -> None:
    assert changes(leaders(([{BUSY: 1.0}] * 7 + [{DISK: 1.0}] * 3) * 60)) == 0


def test_what_is_missed_is_counted_as_such_and_ends_the_lead() -> None:
    account = SecondsByState()
    for now in range(1, 11):
        account.enter({BUSY: 0.75, DISK: 0.25}, 1.0, float(now))
    account.miss(60.0, 70.0)
    assert (account.leader, account.shares, account.unobserved) == (None, {}, 60.0)
    account.enter({DISK: 1.0}, 1.0, 71.0)
    assert (account.leader, account.since) == (DISK, 71.0)
    assert account.seconds[BUSY] == pytest.approx(7.5)
    assert account.seconds[DISK] == pytest.approx(3.5)


@pytest.mark.parametrize(("gap", "gaps"), [(4, 4.0), (58, 58.0), (61, 0.0)])
def test_a_state_goes_on_over_a_gap_of_up_to_a_minute(gap: int, gaps: float) -> None:
    account = SecondsByState()
    for now in range(1, 101):
        account.enter({HUNG: 1.0}, 1.0, float(now))
    first = account.since
    for now in range(101, 101 + gap):
        account.miss(1.0, float(now))
    for now in range(101 + gap, 111 + gap):
        account.enter({HUNG: 1.0}, 1.0, float(now))
    assert (account.since == first) is (gap <= 60)
    assert account.gaps == pytest.approx(gaps, abs=1.0)


def test_a_state_goes_on_after_another_led_for_a_moment() -> None:
    account = SecondsByState()
    for now in range(1, 201):
        paused = 100 <= now < 112 or 150 <= now < 160
        account.enter({BUSY if paused else DISK: 1.0}, 1.0, float(now))
    assert (account.leader, account.since) == (DISK, 1.0)
    assert 10 <= account.gaps <= 40


shares = st.dictionaries(st.sampled_from(PAIRS), st.floats(0.01, 1.0), min_size=1, max_size=5)
ticks = st.lists(st.tuples(st.floats(0.1, 2.5), shares, st.booleans()), max_size=40)


@given(ticks)
def test_every_second_is_counted_once(found: list[tuple[float, dict[Pair, float], bool]]) -> None:
    account, now = SecondsByState(), 0.0
    booked: dict[Pair, float] = {}
    for seconds, weights, missed in found:
        now += seconds
        parts = {pair: weight / sum(weights.values()) for pair, weight in weights.items()}
        if missed:
            account.miss(seconds, now)
        else:
            account.enter(parts, seconds, now)
            booked = {pair: booked.get(pair, 0.0) + p * seconds for pair, p in parts.items()} | {
                pair: spent for pair, spent in booked.items() if pair not in parts
            }
            assert sum(account.shares.values()) == pytest.approx(1.0)
        assert (account.leader is None) == missed
    assert sum(account.seconds.values()) + account.unobserved == pytest.approx(now)
    assert {p: spent for p, spent in account.seconds.items() if spent} == pytest.approx(booked)


def test_a_hang_leads_at_once_and_is_over_at_once() -> None:
    assert leaders([{BUSY: 1.0}] * 12 + [{HUNG: 1.0}] * 20 + [{BUSY: 1.0}] * 2) == [
        *([BUSY] * 12),
        *([HUNG] * 20),
        *([BUSY] * 2),
    ]
