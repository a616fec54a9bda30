"""One GPU's account: its seconds by state and cause, and the pair that leads now."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.model import BUSY, PAIRS, Cause, Pair, State

LEADER_WINDOW = 10.0
"""Seconds over which the largest share is found."""

LEADS_AFTER = 3.0
"""Seconds for which a pair must lead before it is told: no state flaps at any threshold."""

LAUNCH_ALLOWANCE = 0.03
"""Share of each minute for which an inactive GPU counts as busy: launching work costs so much."""

MINUTE = 60.0
ROUNDING = 1e-9
"""Share that sums of floating-point numbers may miss: no second is starved for it."""

LEAST_DISK_TO_UNKNOWN = 0.5
"""Seconds of pauses for the disk over those without a cause, at least, to stand for these too."""

UNKNOWN: Pair = (State.STARVED, Cause.UNKNOWN)
DISK: Pair = (State.STARVED, Cause.DISK)

Parts = Mapping[Pair, float]
"""Shares of one second by state and cause; they sum to 1."""


@dataclass(slots=True)
class LaunchAllowance:
    """Inactive seconds that launching work still excuses: 3 % of any minute."""

    left: float = 0.0

    def allow(self, parts: Parts, seconds: float, spun: float) -> Parts:
        """The parts with what is left of the price taken from the starved ones and added to busy.

        `spun` is the part of starving that kernels spent spinning for a peer: no launching.
        """
        self.left = min(LAUNCH_ALLOWANCE * MINUTE, self.left + LAUNCH_ALLOWANCE * seconds)
        inactive = {
            pair: part - spun * (pair[1] is Cause.PEER)
            for pair, part in parts.items()
            if pair[0] is State.STARVED
        }
        lost = sum(inactive.values())
        if lost <= 0 or seconds <= 0:
            return parts
        forgiven = min(lost, self.left / seconds + ROUNDING)
        self.left -= forgiven * seconds
        taken = forgiven / lost
        changed = {pair: parts[pair] - part * taken for pair, part in inactive.items()}
        return {**parts, **changed, BUSY: parts.get(BUSY, 0.0) + forgiven}


@dataclass(slots=True)
class DiskPauseAttribution:
    """Pauses for the disk of late, and pauses that nothing explained, in seconds.

    Whether a process sleeps uninterruptibly is looked at once a second, and a short wait may be
    missed: a checkpoint is met at every other look. A pause that nothing explains is taken for one
    like those for the disk, as long as these are no rare exception.
    """

    disk: float = 0.0
    unknown: float = 0.0

    def attribute(self, parts: Parts, seconds: float, *, works: bool) -> Parts:
        """The parts with what nothing explains added to the disk's.

        `works`: the GPU works between its pauses, and its processes do something: it is neither
        loading a model before its first work nor waiting for requests.
        """
        kept = math.exp(-seconds / MINUTE)
        unknown = parts.get(UNKNOWN, 0.0)
        self.disk = self.disk * kept + (parts.get(DISK, 0.0) * seconds if works else 0.0)
        self.unknown = self.unknown * kept + unknown * seconds
        if not unknown or not works or self.disk < LEAST_DISK_TO_UNKNOWN * self.unknown:
            return parts
        rest = {pair: part for pair, part in parts.items() if pair != UNKNOWN}
        return {**rest, DISK: rest.get(DISK, 0.0) + unknown}


@dataclass(slots=True)
class SecondsByState:
    """Seconds by state and cause as far as they were observed, and the pair that leads."""

    seconds: dict[Pair, float] = field(default_factory=lambda: dict.fromkeys(PAIRS, 0.0))
    unobserved: float = 0.0
    leader: Pair | None = None
    since: float = 0.0  # when the leader began to lead (monotonic seconds)
    shares: Parts = field(default_factory=dict)
    """Shares of the last ten seconds by pair, those above 0; empty where nothing is known."""

    _recent: deque[tuple[float, float, Parts]] = field(default_factory=deque)
    _candidate: Pair | None = None
    _candidate_since: float = 0.0

    def enter(self, parts: Parts, seconds: float, now: float) -> None:
        """Count one tick of so many seconds that ended at `now`; what is no share of it is not."""
        if not all(part >= 0 for part in parts.values()):  # or NaN
            self.miss(seconds)
            return
        for pair, part in parts.items():
            self.seconds[pair] += part * seconds
        self._recent.append((now, seconds, parts))
        while self._recent[0][0] <= now - LEADER_WINDOW:
            self._recent.popleft()
        self.shares = self._shares()
        self._lead(now, seconds)

    def miss(self, seconds: float) -> None:
        """So many seconds of which nothing is known; what led before leads no more."""
        self.unobserved += seconds
        self._recent.clear()
        self.shares = {}
        self.leader = self._candidate = None

    def _shares(self) -> Parts:
        whole = sum(seconds for _, seconds, _ in self._recent)
        found: dict[Pair, float] = {}
        if not whole:
            return found
        for _, seconds, parts in self._recent:
            for pair, part in parts.items():
                if part:
                    found[pair] = found.get(pair, 0.0) + part * seconds / whole
        return found

    def _lead(self, now: float, seconds: float) -> None:
        if not self.shares:
            return
        largest = max(self.shares, key=self.shares.__getitem__)
        if largest == self.leader:
            self._candidate = None
        elif self.leader is None:
            self.leader, self.since = largest, now
        elif largest != self._candidate:
            self._candidate, self._candidate_since = largest, now - seconds
        if self._candidate is not None and now - self._candidate_since >= LEADS_AFTER:
            self.leader, self.since = self._candidate, self._candidate_since
            self._candidate = None
