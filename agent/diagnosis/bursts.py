"""Whether a GPU works in bursts: with rests that its power shows, 20 ms or longer."""

from agent.diagnosis.evidence import Evidence

BURST_REST_SHARE = 0.50
"""Share of its inactive time in rests that are long enough to be seen in 20 ms power samples, from
which a GPU works in bursts; one that waits for launches rests for less than a millisecond each."""

LEAST_REST = 0.05
"""Share of time below which such rests say nothing of who causes them."""

WORKS_AT_ALL = 0.05
"""Activity below which a process at one core may be a server that spins for requests."""


def in_bursts(e: Evidence) -> bool:
    """Whether most of its inactive time lies in such rests."""
    inactive = 1.0 - e.mean_activity
    return rest_share(e) >= max(LEAST_REST, BURST_REST_SHARE * inactive)


def rest_share(e: Evidence) -> float:
    """Share of the time that the GPU is inactive, with its power at the lower of two levels."""
    levels = e.history.power
    rest = levels.lower_share if levels is not None and levels.distinct else 0.0
    return min(rest, 1.0 - e.mean_activity)
