"""GPU faults that PromQL cannot express: failed calls, missing values, throttling, and waits."""

import re
from collections.abc import Iterator
from functools import cache

from agent.catalogue import METRICS
from agent.diagnosis.accounting import STATE
from agent.diagnosis.advice import ADVICE
from agent.faults.model import Fault, Finding, Look, Seen
from agent.model import GPU_LABELS, Absence, Cause, Figure, GpuKey, Reason, State
from agent.sources import clocks, gpu

SLOWDOWN = "hardware slowdown"
HARMFUL = {
    "software_thermal": "thermal slowdown",
    "hardware_thermal": "thermal slowdown",
    "power_brake": "power brake",
    "hardware_slowdown": SLOWDOWN,
}
"""Words for the throttle reasons that indicate a fault. A power cap is not among them."""

SILENT = (Reason.NOT_ANSWERING, Reason.FAILED, Reason.STALLED)
"""Reasons for absent values that indicate a GPU fault, most serious first."""


def of_silent(absence: Absence) -> bool:
    """Return whether a value of a GPU is absent because a driver call failed or timed out."""
    of_gpu = absence.metric.labels[:2] == GPU_LABELS and absence.metric is not STATE
    late = absence.reason is Reason.STALLED and not absence.detail.startswith("nvml")
    return of_gpu and absence.reason in SILENT and not late


def silent(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield the GPUs whose driver calls fail. Yield none if the driver hangs for all GPUs."""
    if machine.has("driver_hangs"):
        return
    found: dict[GpuKey, list[Absence]] = {}
    for absence in machine.absences:
        if of_silent(absence) and len(absence.labels) > 1:
            key = GpuKey(int(absence.labels[0]), absence.labels[1])
            found.setdefault(key, []).append(absence)
    for key, absences in sorted(found.items()):
        count = len({absence.metric.name for absence in absences})
        first = min(absences, key=lambda absence: SILENT.index(absence.reason))
        figures = (Figure("metrics", count, None, "count"),) if key.uuid else ()  # else all lack
        yield Seen(key, figures=figures, names=(first.detail,))


@cache
def _named(pattern: str) -> frozenset[str]:
    """Return the names of the metrics that match a regular expression."""
    return frozenset(name for name in METRICS if re.fullmatch(pattern, name))


REFUSED = (Reason.UNSUPPORTED, Reason.MISSING, Reason.DENIED, Reason.DRIVER)


def refusing(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield the GPUs that lack values which most other GPUs of the same model report."""
    assert fault.finding
    asked = _named(fault.finding.metrics)
    samples, refused = machine.samples, dict[GpuKey, list[str]]()
    models = {labels["uuid"]: labels["model"] for labels in samples.labelled(gpu.INFO)}
    for absence in machine.absences:
        if absence.reason not in REFUSED or absence.metric.name not in asked:
            continue
        index, uuid = absence.labels[:2]
        answer = {labels[1] for labels in samples.all(absence.metric)}
        model = models.get(uuid)
        siblings = [one for one, of_one in models.items() if of_one == model and one != uuid]
        if uuid not in answer and 2 * len(answer.intersection(siblings)) > len(siblings):
            refused.setdefault(GpuKey(int(index), uuid), []).append(absence.metric.name)
    for key, words in sorted(refused.items()):
        yield Seen(key, names=(", ".join(dict.fromkeys(words)),))


def reasons(finding: Finding) -> str:
    """Return a finding's throttle reasons in words. Hardware slowdown occurs together with other
    reasons, so it is included only if there is no other reason."""
    named = dict.fromkeys(HARMFUL[reason] for reason in finding.names)
    return ", ".join([name for name in named if name != SLOWDOWN] or [SLOWDOWN])


def cure(finding: Finding) -> str:
    """Return the first step for a throttled GPU: the advice about heat, about power, or both,
    depending on the throttle reasons in the finding. Without either kind of reason, return both."""
    power, thermal = "power_brake" in finding.names, any("thermal" in n for n in finding.names)
    causes = [Cause.THERMAL] * (thermal or not power) + [Cause.POWER] * (power or not thermal)
    return " ".join(ADVICE[State.THROTTLED, cause] for cause in causes)


def held_down(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield the GPUs that are throttled now, each with its clock and throttle reasons."""
    samples, both = machine.samples, (clocks.CLOCK, clocks.CLOCK_LIMIT)
    harmful = [one for one in clocks.THROTTLES if one.reason in HARMFUL]
    for (index, uuid), mask in sorted(samples.all(clocks.REASONS).items()):
        held = sorted(one.reason for one in harmful if one.bit & int(mask))
        now, most = (samples.value(metric, index, uuid, "sm") for metric in both)
        figures = () if now is None else (Figure("clock", now, most, "hertz"),)
        if held:
            yield Seen(GpuKey(int(index), uuid), figures=figures, names=tuple(held))


def first_causes(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield the GPUs that wait for at least a share `bound` of the time, with the main cause."""
    gpus: dict[GpuKey, dict[str, float]] = {}
    for labels, share in fault.rows(machine.windows):
        key = GpuKey(int(labels["gpu"]), labels["uuid"])
        gpus.setdefault(key, {})[labels["cause"]] = share
    for key, causes in sorted(gpus.items()):
        share = sum(causes.values())
        if share >= fault.bound:
            first = max(sorted(causes), key=causes.__getitem__)
            figures = (Figure(fault.figure, share, fault.bound),)
            yield Seen(key, "", figures, (first,), labels=(("cause", first),))


def cure_of_waiting(finding: Finding) -> str:
    return ADVICE[State.STARVED, Cause(finding.names[0])]


def waited_for(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield each GPU that other GPUs of this machine wait for, with the number of waiting GPUs."""
    counts: dict[str, int] = {}
    for labels, share in fault.rows(machine.windows):
        if share >= fault.bound:
            counts[labels["culprit"]] = counts.get(labels["culprit"], 0) + 1
    indices = {labels["uuid"]: labels["gpu"] for labels in machine.samples.labelled(gpu.INFO)}
    for uuid, number in sorted(counts.items()):
        figures = (Figure("gpus", number, None, "count"),)
        key = GpuKey(int(indices[uuid]), uuid) if uuid in indices else None
        yield Seen(key, "", figures, (indices.get(uuid, uuid),))
