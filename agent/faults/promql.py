"""The pieces of PromQL that the rules are made of. Labels of the target (instance, job, and what
the owner adds) are kept everywhere."""

from typing import NamedTuple

from agent.diagnosis import accounting
from agent.faults.values import seconds
from agent.model import Kind, Metric
from agent.sources import gpu, system
from agent.sources.agent_health import LAST_TICK

NODE = "instance, job"
GPU = f"{NODE}, gpu, uuid"
"""The labels that identify a machine, and a GPU of it."""


class Recording(NamedTuple):
    """One recording rule; `record` is named level:metric:operations."""

    record: str | Metric
    expr: str

    def __str__(self) -> str:
        return str(self.record)


LOST = (
    f"(group without () ({accounting.UNOBSERVED_SECONDS}) unless on ({NODE}, uuid) {gpu.INFO}"
    f" and on ({NODE}) ({system.GPUS} < {system.GPUS_EXPECTED}))"
)
"""GPUs that are known and gone: their accounts stay, what describes them has no value. Of a driver
that hangs no GPU is lost: nothing at all has a value then."""


def one(expr: str, *labels: str) -> str:
    """The one side of a join: a row a machine and these labels, whatever else its owner's labels
    are, so that a target that is relabelled or scraped twice makes no rule fail."""
    return f"max by ({', '.join((NODE, *labels))}) ({expr})"


REMEMBERED = "1d"
"""Time for which a machine's parts are remembered: GPUs, should its driver be gone; past events."""


def pick(metric: Metric | Recording, /, **labels: str) -> str:
    """Series by their labels; a value that begins with = ! or ~ brings its own operator."""
    pairs = ((name, *matcher(value)) for name, value in labels.items())
    matchers = ", ".join(f'{name}{operator}"{word}"' for name, operator, word in pairs)
    return f"{metric}{{{matchers}}}" if matchers else str(metric)


def matcher(value: str) -> tuple[str, str]:
    return (value[:2], value[2:]) if value[:2] in ("!=", "=~", "!~") else ("=", value)


def rate(counter: Metric, over: str, /, **labels: str) -> str:
    assert counter.kind is Kind.COUNTER, f"{counter} is no counter"
    return f"rate({pick(counter, **labels)}[{over}])"


def increase(counter: Metric, over: str, /, **labels: str) -> str:
    assert counter.kind is Kind.COUNTER, f"{counter} is no counter"
    return f"increase({pick(counter, **labels)}[{over}])"


def observed_share(part: str, whole: str, window: str, but: str = "", least: float = 0.5) -> str:
    """The part of the time observed, from the growth of two counters of seconds, once so much of
    the window was observed: an agent that has just started does not take its first minute for a
    quarter of an hour, and one that restarts often loses as much of the part as of the whole. No
    rates: those of VictoriaMetrics are of the time between the samples that there are. `but` names
    labels that only the part has."""
    match = f"ignoring ({but}) group_left () " if but else ""
    return f"{part} / {match}({whole} >= {least * seconds(window):g})"


def events(
    counter: Metric, over: str, memory: str, /, had: Recording | None = None, **labels: str
) -> str:
    """Growth of a counter whose series may begin with its first event, which no increase shows.

    A series is new when `memory` before the window knew nothing of it under any number of its GPU,
    and the agent was scraped within the window without it: one look back would take each old event
    for new whenever half an hour after a gap between two scrapes, after a GPU was lost and others
    moved up, or where Prometheus has just begun. `had` records the series above 0: where most are
    at 0, to look through all of them over a day each time takes Prometheus longer than the time
    between two evaluations. The agent's scrapes are matched by all labels of the target: of one
    that was relabelled those before do not count. A restart of the agent may end the series.
    """
    kept = [label for label in counter.labels if label != "gpu"]
    series = pick(counter, **labels)
    old = f"last_over_time({pick(had or counter, **labels)}[{memory}] offset {over})"
    new = f"max_over_time({pick(had or counter, **labels)}[{over}]) > 0"
    scrapes = f"sum without (gpu) (count_over_time({series}[{over}]) and ignoring (gpu) {new})"
    ticks = f"ignoring ({', '.join(kept)}) group_left () count_over_time({LAST_TICK}[{over}])"
    same = f"on ({', '.join((NODE, *kept))})"
    born = f"({new} unless {same} {old} unless ignoring (gpu) ({scrapes} >= {ticks}))"
    return f"({increase(counter, over, **labels)} > 0) or {born}"
