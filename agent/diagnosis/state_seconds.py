"""Seconds of a GPU by state and cause (a pair), and the leader: the pair that the outputs show."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.diagnosis.energy import EnergyByState, Parts
from agent.model import PAIRS, Cause, Pair, State

LEADER_WINDOW = 10.0
"""The leader is the pair with the largest share of the last LEADER_WINDOW seconds. A job counts as
hung after all its GPUs have waited for this long. This value and the next two were chosen, not
measured. They affect when a state is shown, but not how many seconds are counted."""

LEADS_AFTER = 3.0
"""Seconds for which a pair must have the largest share before it becomes the leader, once there
are LEADER_WINDOW seconds of shares."""

BRIDGED = 60.0
"""Maximum length of a gap in seconds. If a pair was the leader before a gap (missing data or a
different leader) and is the leader again after it, its start time is kept."""

HUNG: Pair = (State.HUNG, Cause.NONE)


class Lead(NamedTuple):
    """A state and cause that was the leader from `since` to `until`, except for `gaps` seconds."""

    pair: Pair
    since: float
    gaps: float
    until: float


@dataclass(slots=True)
class SecondsByState:
    """Observed seconds by state and cause, and the leader: the state and cause to show."""

    seconds: dict[Pair, float] = field(default_factory=lambda: dict.fromkeys(PAIRS, 0.0))
    unobserved: float = 0.0
    tensor: float | None = None  # seconds that its work takes at the tensor core peak, if known
    energy: EnergyByState = field(default_factory=EnergyByState)
    leader: Pair | None = None
    since: float = 0.0  # time at which the leader began to lead (monotonic seconds)
    shares: Parts = field(default_factory=dict)
    """Shares of the last ten seconds by state and cause, without zeros. Empty if unknown."""

    gaps: float = 0.0  # seconds after `since` in which the leader did not lead
    _tensor: float = 0.0  # last reading of the counter of tensor work
    _before: Lead | None = None  # the previous leader
    _recent: deque[tuple[float, float, Parts]] = field(default_factory=deque)
    _candidate: Pair | None = None
    _candidate_since: float = 0.0

    def enter(self, parts: Parts, seconds: float, now: float) -> None:
        """Add a tick that lasted `seconds` seconds and ended at time `now` (s)."""
        for pair, part in parts.items():
            self.seconds[pair] += part * seconds
        hung = parts.get(HUNG) == 1.0
        if self.leader == HUNG and not hung:  # the job continued or ended, and so did the hang
            self._forget(now)
        self._recent.append((now, seconds, parts))
        while self._recent[0][0] <= now - LEADER_WINDOW:
            self._recent.popleft()
        whole = sum(time for _, time, _ in self._recent)
        shares: dict[Pair, float] = {}
        for _, time, divided in self._recent if whole else ():
            for pair, part in divided.items():
                if part:
                    shares[pair] = shares.get(pair, 0.0) + part * time / whole
        self.shares = shares
        if shares:
            largest = HUNG if hung else max(shares, key=shares.__getitem__)
            self._lead(largest, now, seconds, at_once=hung or whole < LEADER_WINDOW)

    def count_tensor(self, value: float) -> None:
        """Add the increase of the counter of tensor work, which restarts from 0 with its GPU."""
        grown = value - self._tensor if value >= self._tensor else value
        self.tensor, self._tensor = (self.tensor or 0.0) + grown, value

    def miss(self, seconds: float, now: float) -> None:
        """Add `seconds` unobserved seconds that ended at time `now` (s), and clear the leader."""
        self.unobserved += seconds
        self.shares = {}
        self._forget(now - seconds)

    def _forget(self, now: float) -> None:
        """Clear the leading state at `now` (s). If it soon leads again, keep its start time."""
        self._recent.clear()
        self._before = self._lead_until(now)
        self.leader = self._candidate = None

    def _lead_until(self, now: float) -> Lead | None:
        if self.leader is None:
            return self._before
        return Lead(self.leader, self.since, self.gaps, now)

    def _leads(self, pair: Pair, since: float) -> None:
        """Make `pair` the leader. If it was the leader shortly before, keep its start time."""
        before, self._before = self._before, self._lead_until(since)
        self.leader, self.since, self.gaps, self._candidate = pair, since, 0.0, None
        if before and before.pair == pair and since - before.until <= BRIDGED:
            self.since, self.gaps = before.since, before.gaps + since - before.until

    def _lead(self, largest: Pair, now: float, seconds: float, *, at_once: bool) -> None:
        """Update the leader: at once for a hang, which has already lasted 10 s, and while the first
        readings, which say little, are among those of the last 10 s."""
        if largest == self.leader:
            self._candidate = None
        elif at_once:
            self._leads(largest, now if self.leader is None and largest != HUNG else now - seconds)
        elif largest != self._candidate:
            self._candidate, self._candidate_since = largest, now - seconds
        if self._candidate is not None and now - self._candidate_since >= LEADS_AFTER:
            self._leads(self._candidate, self._candidate_since)
