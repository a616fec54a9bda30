"""Faults of waiting GPUs: the main cause of waiting, and the GPU for which other GPUs wait."""

from collections.abc import Iterator

from agent.diagnosis.advice import ADVICE
from agent.faults.model import Fault, Look, Seen
from agent.model import Cause, Figure, Finding, GpuKey, State
from agent.sources import gpu


def first_causes(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield the GPUs whose share of waiting reaches the bound, and the main cause for each GPU."""
    assert fault.finding
    gpus: dict[GpuKey, dict[str, float]] = {}
    for labels, share in fault.rows(machine.samples):
        key = GpuKey(int(labels["gpu"]), labels["uuid"])
        gpus.setdefault(key, {})[labels["cause"]] = share
    for key, causes in sorted(gpus.items()):
        share = sum(causes.values())
        if share >= fault.finding.bound:
            first = max(sorted(causes), key=causes.__getitem__)
            figures = (Figure(fault.figure, share, fault.finding.bound),)
            yield Seen(key, "", figures, (first,), labels=(("cause", first),))


def cure(finding: Finding) -> str:
    return ADVICE[State.STARVED, Cause(finding.names[0])]


def waited_for(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield the GPUs for which other GPUs of this machine wait, with the number of these GPUs."""
    assert fault.finding
    counts: dict[str, int] = {}
    for labels, share in fault.rows(machine.samples):
        if share >= fault.finding.bound:
            counts[labels["culprit"]] = counts.get(labels["culprit"], 0) + 1
    indices = {labels["uuid"]: labels["gpu"] for labels in machine.samples.labelled(gpu.INFO)}
    for uuid, number in sorted(counts.items()):
        figures = (Figure("gpus", number, None, "count"),)
        key = GpuKey(int(indices[uuid]), uuid) if uuid in indices else None
        yield Seen(key, "", figures, (indices.get(uuid, uuid),))
