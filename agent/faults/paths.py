"""Alerts for data paths that are full, for minutes, against the limit of this very system."""

from agent.diagnosis.advice import ADVICE, CHECKPOINT, READ_FASTER
from agent.faults import places
from agent.faults.model import Fault
from agent.faults.promql import GPU, pick
from agent.faults.records import gpu_time, saturation
from agent.faults.templates import SHARE, by_label, speed_of
from agent.faults.thresholds import RuleParameters
from agent.limits import paths
from agent.model import Cause, State

LINKS = "=~nvlink|pcie|infiniband|network"
ONE_LINK = "=~.+:.+"
"""The device of one NVLink among several is gpu0:3, that of all of them together gpu0."""

CURES = {
    "nvlink": ADVICE[State.COMMUNICATING, Cause.NVLINK],
    "pcie": ADVICE[State.STARVED, Cause.PCIE],
    "infiniband": ADVICE[State.COMMUNICATING, Cause.INFINIBAND],
    "network": ADVICE[State.STARVED, Cause.NETWORK],
}


def _text(parameters: RuleParameters, what: str) -> str:
    limits = parameters.thresholds
    return (
        f"{what} of {{{{ $labels.instance }}}} was full for {SHARE} of the last "
        f"{limits.saturated_window} (limit {limits.saturated_share:.0%} of the time; it can carry "
        f"{speed_of(paths.LIMIT)})."
    )


def link_saturated(parameters: RuleParameters) -> Fault:
    """A wire is full. NVLink only where communication takes time: an all-reduce behind the kernels
    costs nothing. If all NVLinks of a GPU together are full, they are not reported one by one."""
    full = parameters.thresholds.saturated_share
    every = pick(saturation(parameters), path=LINKS)
    nvlink = pick(saturation(parameters), path="nvlink")
    sending = {"state": State.COMMUNICATING, "cause": Cause.NVLINK}
    costs = (
        f"{pick(gpu_time(parameters), **sending)} >= {parameters.thresholds.starved_hours_share:g}"
    )
    together = pick(saturation(parameters), path="nvlink", device="!~.+:.+")
    alone = pick(saturation(parameters), path="nvlink", device=ONE_LINK)
    join = "instance, job, uuid, direction"
    return Fault(
        alert="DgxLinkSaturated",
        when=f"{every} >= {full:g} unless ({alone} and on ({join}) ({together} >= {full:g})) "
        f"unless ({nvlink} unless on ({GPU}) ({costs}))",
        hold="1m",
        summary="link at its limit",
        description=_text(
            parameters,
            "{{ $labels.path }} {{ $labels.device }} ({{ $labels.direction }})"
            "{{ with $labels.uuid }} of {{ . }}{{ end }}",
        ),
        do=by_label("path", CURES),
        place=places.PATH,
    )


def disk_saturated(parameters: RuleParameters) -> Fault:
    """A disk or array is full."""
    full = parameters.thresholds.saturated_share
    return Fault(
        alert="DgxDiskSaturated",
        when=f"{pick(saturation(parameters), path='disk')} >= {full:g}",
        hold="1m",
        summary="disk at its limit",
        description=_text(parameters, "Disk {{ $labels.device }} ({{ $labels.direction }})"),
        do=by_label(
            "direction",
            {"read": READ_FASTER, "write": CHECKPOINT, "total": ADVICE[State.STARVED, Cause.DISK]},
        ),
        place=places.PATH,
    )
