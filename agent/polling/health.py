"""What the poller knows of the agent itself; `agent.sources.agent_health` makes metrics of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from agent.model import Reading, ReadKey, Snapshot
from agent.polling import intervals
from agent.polling.reads import OFF, ReadCosts

HEALTH = ReadKey("agent", "health")


@dataclass(frozen=True, slots=True)
class AgentHealth:
    """Which sources deliver, what reads cost, whether the configuration on disk is good, how often
    the wall clock was set and when it last was."""

    sources_up: Mapping[str, bool]
    read_costs: Iterable[ReadCosts]
    config_ok: bool
    clock_steps: int
    clock_stepped_at: float | None = None


HealthReport = Callable[[Snapshot, AgentHealth], Reading]


def no_report(snapshot: Snapshot, _: AgentHealth) -> Reading:
    """Says nothing of the agent."""
    return Reading(HEALTH, snapshot.at, intervals.TICK)


def sources_up(readings: Mapping[ReadKey, Reading], stalled: Iterable[str]) -> dict[str, bool]:
    """Which sources deliver: none of their reads failed, and their worker is not stuck."""
    up: dict[str, bool] = {}
    for key, reading in readings.items():
        if key.part == OFF:
            continue
        up[key.source] = up.get(key.source, True) and not reading.failure
    up.pop(HEALTH.source, None)
    up.update(dict.fromkeys(stalled, False))
    return up
