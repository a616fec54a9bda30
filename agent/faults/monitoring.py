"""Monitoring faults that PromQL cannot express, and the reasons for absent values."""

import os
from collections import Counter
from collections.abc import Iterator

from agent.faults.gpus import of_silent
from agent.faults.model import NEVER, Fault, Finding, Look, Seen
from agent.limits import paths
from agent.metrics import beside
from agent.model import Figure, Reason
from agent.sources import kernel_log, system
from agent.sources.agent_health import CERTIFICATE_ENDS, SOURCE_UP

NVML = "nvml"
"""The source for NVML. It counts as up if there is no driver and so nothing to read."""

_REASONS = beside(__file__, "reasons")
ABSENT: dict[str, str] = _REASONS["words"]
"""Words for the reasons for absent values, from `reasons.toml`."""


def driver_released(machine: Look, _: Fault) -> Iterator[Seen]:
    gpus = machine.samples.absence(system.GPUS)
    if machine.samples.value(SOURCE_UP, NVML) and gpus and gpus.reason is Reason.RELEASED:
        yield Seen(names=(gpus.detail,))


def values_absent(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield each reason for absent values that indicates a fault, with the number of metrics."""
    if machine.has("driver_hangs"):
        return  # avoids two findings for the same fault
    absent = {(a.reason, a.metric.name) for a in machine.absences if not of_silent(a)}
    late = Reason.STALLED if machine.has("short_of_processors") else None  # has its own finding
    denied = Reason.DENIED if os.geteuid() else "denied to root"
    counts = Counter(
        denied if reason is Reason.DENIED else reason
        for reason, metric in absent
        if metric not in _REASONS["finding"]["optional"] and reason is not late
    )
    for why in _REASONS["finding"]["to_see"]:
        if counts[why]:
            figures = (Figure("metrics", counts[why], None, "count"),)
            yield Seen(figures=figures, names=(str(why),), labels=(("reason", str(why)),))


def why(finding: Finding) -> str:
    return ABSENT[finding.names[0]]


def hold_of_values(finding: Finding) -> str:
    return finding.fault.hold if finding.names == (Reason.STALLED,) else NEVER


def certificate(machine: Look, fault: Fault) -> Iterator[Seen]:
    """If the TLS certificate expires soon or has expired, yield a fault with the time to expiry."""
    ends, soon = machine.samples.value(CERTIFICATE_ENDS), fault.bound
    left = soon if ends is None else ends - machine.snapshot.wall
    if left < soon and (left < 0) is (fault.labels["sign"] == "expired"):
        yield Seen(figures=(Figure("time", abs(left), None, "seconds"),))


def limits_unused(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield the configured limits for devices that this machine does not have."""
    for metric, labels, reason, _detail in machine.absences:
        if metric is paths.LIMIT and reason is Reason.MISSING:
            yield Seen(device=labels[1], names=(labels[0], labels[-1]))


def log_closed(machine: Look, _: Fault) -> Iterator[Seen]:
    closed = machine.samples.absence(kernel_log.READABLE)
    if closed and closed.reason is not Reason.UNSUPPORTED:  # a recording may have none
        yield Seen(names=(closed.detail,))
