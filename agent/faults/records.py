"""Recording rules for events, and the names of the recording rules that reports use."""

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
"""SHARED_SECONDS_RECORD and the following names are for shared GPUs, which the other rules omit."""

REPORT_EVERY = "5m"
"""Window and evaluation interval of the recording rules for reports."""

BUSY_DISK = 0.9
"""A disk without a known limit is full if it has requests in flight for this share of time."""


def events(
    window: str,
    counter: str,
    labels: Mapping[str, str] = {},  # never modified
    *,
    of_life: bool = False,
) -> tuple[Recording, ...]:
    """Return the recording rules for a counter of events. A series of the counter may only be
    created by its first event, which `increase` does not count. Therefore the rules record the
    series above 0, the series that are new within the window, and the events within the window.

    A series is new if it was not above 0, for any GPU number, on the day before the window, and if
    it is missing from a scrape within the window. Otherwise, every old event would seem new after a
    gap between two scrapes, after a lost GPU changes the numbers of other GPUs, or after Prometheus
    starts. Scrapes are matched by all target labels, so scrapes from before a relabelling do not
    count. If a counter covers the lifetime of a GPU (`of_life`), only scrapes that contain the
    counter are considered, because its first value after a start of the agent may include old
    events.
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
