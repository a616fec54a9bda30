"""Recording rules: expressions that several rules and people use."""

from agent.diagnosis import accounting
from agent.limits import paths
from alerts.model import Group, Recording
from alerts.promql import rate, share
from alerts.spans import Terms

VERDICT = "state, cause"


def gpu_time(terms: Terms) -> Recording:
    """Where the time of each GPU went: the share of every state and cause."""
    window = terms.thresholds.starved_window
    part = rate(accounting.STATE_SECONDS, terms.over(window))
    return Recording(
        f"instance_gpu_state_cause:dgx_gpu_state_seconds:ratio_rate{window}",
        share(part, f"sum without ({VERDICT}) ({part})", but=VERDICT),
    )


def node_time(terms: Terms) -> Recording:
    """The same of all GPUs of a machine together."""
    window = terms.thresholds.starved_window
    return Recording(
        f"instance_state_cause:dgx_gpu_state_seconds:ratio_rate{window}",
        f"avg without (gpu, uuid) ({gpu_time(terms)})",
    )


def saturation(terms: Terms) -> Recording:
    """The share of the time for which each data path was saturated."""
    window = terms.thresholds.saturated_window
    over = terms.over(window)
    return Recording(
        f"instance_path_device_direction:dgx_bandwidth_saturated_seconds:ratio_rate{window}",
        share(rate(paths.SATURATED, over), rate(paths.OBSERVED, over)),
    )


def records(terms: Terms) -> Group:
    """Evaluated for all who ask."""
    return Group("dgx-records", (gpu_time(terms), node_time(terms), saturation(terms)))
