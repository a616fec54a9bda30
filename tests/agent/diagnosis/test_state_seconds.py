"""The account of one GPU: the price of launching, the pair that leads, and every second once."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.state_seconds import (
    LAUNCH_ALLOWANCE,
    LEADS_AFTER,
    MINUTE,
    DiskPauseAttribution,
    LaunchAllowance,
    SecondsByState,
)
from agent.model import BUSY, PAIRS, Cause, Pair, State

DISK: Pair = (State.STARVED, Cause.DISK)
CPU: Pair = (State.STARVED, Cause.CPU)
PEER: Pair = (State.STARVED, Cause.PEER)
WHOLE = LAUNCH_ALLOWANCE * MINUTE


def lost_over(share: float, seconds: int, spun: float = 0.0, pair: Pair = DISK) -> float:
    """Seconds still lost of so many in which the GPU was inactive for this share."""
    price = LaunchAllowance()
    told = [price.allow({pair: share, BUSY: 1 - share}, 1.0, spun) for _ in range(seconds)]
    assert all(sum(parts.values()) == pytest.approx(1.0) for parts in told)
    return sum(parts[pair] for parts in told)


def test_three_percent_of_every_minute_are_the_price_of_launching() -> None:
    assert lost_over(0.03, 600) == 0.0
    assert lost_over(1 - 0.97, 600) == 0.0, "1 - 0.97 is a little more than 0.03"
    assert lost_over(0.04, 3600) == pytest.approx(0.01 * 3600, abs=0.1)
    assert lost_over(0.50, 3600) == pytest.approx(0.47 * 3600, abs=0.1)


def test_what_kernels_spin_for_a_peer_is_no_launching() -> None:
    assert lost_over(0.20, 60, spun=0.20, pair=PEER) == pytest.approx(12.0)
    assert lost_over(0.20, 1, spun=0.10, pair=PEER) == pytest.approx(0.20 - LAUNCH_ALLOWANCE)


def test_a_stall_costs_no_more_than_the_minute_holds() -> None:
    price = LaunchAllowance()
    kept = [price.allow({DISK: 1.0}, 1.0, 0.0)[DISK] for _ in range(10)]
    assert sum(kept) == pytest.approx(10 - 10 * LAUNCH_ALLOWANCE)
    for _ in range(600):
        price.allow({BUSY: 1.0}, 1.0, 0.0)
    assert price.left == pytest.approx(WHOLE), "what was not needed is not saved for longer"


def test_nothing_but_starving_is_forgiven() -> None:
    parts = {(State.HELD, Cause.NONE): 0.5, (State.COMMUNICATING, Cause.NVLINK): 0.5}
    assert LaunchAllowance().allow(parts, 1.0, 0.0) == parts
    two = LaunchAllowance(left=0.2).allow({DISK: 0.6, CPU: 0.2, BUSY: 0.2}, 1.0, 0.0)
    assert two[DISK] / two[CPU] == pytest.approx(3.0), "of several causes each has its part"


UNKNOWN: Pair = (State.STARVED, Cause.UNKNOWN)


def explained(pauses: list[Pair], *, works: bool = True) -> list[Pair]:
    """What pauses of a second each are taken for."""
    causes = DiskPauseAttribution()
    told = [causes.attribute({pair: 1.0}, 1.0, works=works) for pair in pauses]
    return [next(iter(parts)) for parts in told]


def test_a_pause_like_those_for_the_disk_is_one() -> None:
    assert explained([DISK, UNKNOWN, DISK, UNKNOWN]) == [DISK] * 4
    assert explained([DISK] + [UNKNOWN] * 9)[-1] == UNKNOWN, "one was a rare exception"
    assert explained([CPU, UNKNOWN]) == [CPU, UNKNOWN], "who uses a core is seen at every look"


def test_a_gpu_that_does_not_work_between_its_pauses_waits_for_something_else() -> None:
    assert explained([DISK, DISK, UNKNOWN], works=False) == [DISK, DISK, UNKNOWN]


def leaders(parts: list[dict[Pair, float]]) -> list[Pair | None]:
    """Who leads after each of these seconds."""
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
    account.miss(60.0)
    assert (account.leader, account.shares, account.unobserved) == (None, {}, 60.0)
    account.enter({DISK: 1.0}, 1.0, 71.0)
    assert (account.leader, account.since) == (DISK, 71.0)
    assert account.seconds[BUSY] == pytest.approx(7.5)
    assert account.seconds[DISK] == pytest.approx(3.5)


shares = st.dictionaries(st.sampled_from(PAIRS), st.floats(0.01, 1.0), min_size=1, max_size=5)
ticks = st.lists(st.tuples(st.floats(0.1, 2.5), shares, st.booleans()), max_size=40)


@given(ticks)
def test_every_second_is_counted_once(found: list[tuple[float, dict[Pair, float], bool]]) -> None:
    account, price, now = SecondsByState(), LaunchAllowance(), 0.0
    for seconds, weights, missed in found:
        now += seconds
        parts = {pair: weight / sum(weights.values()) for pair, weight in weights.items()}
        if missed:
            account.miss(seconds)
        else:
            account.enter(price.allow(parts, seconds, 0.0), seconds, now)
            assert sum(account.shares.values()) == pytest.approx(1.0)
        assert (account.leader is None) == missed
    assert sum(account.seconds.values()) + account.unobserved == pytest.approx(now)
    assert min(account.seconds.values()) >= 0
