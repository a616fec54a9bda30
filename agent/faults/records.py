"""Recording rules for events, and the names of those that reports use."""

from collections.abc import Mapping

from agent.catalogue import METRICS
from agent.faults.promql import NODE, REMEMBERED, Recording
from agent.sources.agent_health import LAST_TICK

SECONDS_RECORD = "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m"
JOULES_RECORD = "instance_job_id:dgx_gpu_energy_joules:increase5m"
TENSOR_RECORD = "instance_job_id:dgx_gpu_tensor_throughput_seconds:increase5m"
SHARED_SECONDS_RECORD = "instance_job_id_state_cause:dgx_gpu_job_seconds:increase5m"
SHARED_JOULES_RECORD = "instance_job_id:dgx_gpu_job_joules:increase5m"
SHARED_TENSOR_RECORD = "instance_job_id:dgx_gpu_job_tensor_throughput_seconds:increase5m"
"""The recording rules for shared GPUs. The rules above omit the time of shared GPUs."""

REPORT_EVERY = "5m"
"""Window and evaluation interval of the recording rules for reports."""

BUSY_DISK = 0.9
"""A disk of unknown limit is full if requests are in flight for more than this share of time."""


def events(
    window: str,
    counter: str,
    labels: Mapping[str, str] = {},  # never modified
    *,
    of_life: bool = False,
) -> tuple[Recording, ...]:
    """Return the recording rules for a counter whose series may be created by their first event,
    which `increase` does not count: the series above 0, the series that are new within the window,
    and the events within the window.

    A series is new if it did not exist under any GPU number on the day before the window, and if a
    scrape within the window lacks the series. Otherwise, every old event would seem new after a gap
    between two scrapes, after a lost GPU changes the numbers of other GPUs, or after Prometheus
    starts. The agent's scrapes are matched by all target labels, so scrapes from before a target
    was relabelled do not count. A restart of the agent may end a series. For a counter over the
    lifetime of a GPU (`of_life`), only scrapes with any part of the counter are considered, because
    a value that is read just after the agent starts may be as old as the GPU.
    """
    metric = METRICS[counter]
    matchers = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    picked = f"{counter}{{{matchers}}}" if matchers else counter
    name = f"instance_{'_'.join(metric.labels[2:] or metric.labels)}"
    name += f":{counter.removesuffix('_total')}"
    kept = [label for label in metric.labels if label != "gpu"]
    parts = ", ".join(metric.parts if of_life else kept)
    new = f"max_over_time({name}:above0[{window}])"
    seen = f"count_over_time({picked}[{window}])"
    ticks = f"count_over_time({LAST_TICK}[{window}])"
    if of_life:
        every = f"sum without (gpu) (count_over_time({counter}[{window}]))"
        ticks = f"max without ({parts}) ({every})"
    always = f"sum without (gpu) ({seen} and ignoring (gpu) {new})"
    always += f" >= ignoring ({parts}) group_left () {ticks}"
    old = f"last_over_time({name}:above0[{REMEMBERED}] offset {window})"
    born = f"{new} unless on ({NODE}, {', '.join(kept)}) {old} unless ignoring (gpu) ({always})"
    grown = f"increase({picked}[{window}]) > 0"
    return (
        Recording(f"{name}:above0", f"{picked} > 0"),
        Recording(f"{name}:born{window}", born),
        Recording(f"{name}:events{window}", f"({grown}) or {name}:born{window}", here=grown),
    )
