"""NVLink and NVSwitch faults that cannot be expressed as conditions."""

from collections.abc import Iterator

from agent.faults.model import Fault, Look, Seen
from agent.limits.topology import StrayLinks, wiring
from agent.model import Figure, Finding
from agent.sources import kernel_log


def fatal(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield fatal switch errors within the window, and those without a timestamp."""
    assert fault.finding
    samples = machine.samples
    for labels, times in sorted(samples.all(kernel_log.SWITCH_ERRORS).items()):
        name, severity, code = labels
        at = samples.value(kernel_log.SWITCH_ERROR_AT, *labels)
        if severity == "fatal" and (at is None or samples.now - at <= fault.finding.bound):
            yield Seen(None, name, (Figure("times", times, None, "count"),), (code,))


def stray(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield links with a different kind of remote end than in the system data sheet."""
    for wrong in wiring(machine.samples, machine.spec):
        if isinstance(wrong, StrayLinks):
            figures = (Figure("links", len(wrong.links), None, "count"),)
            yield Seen(wrong.gpu, "", figures, (wrong.remote, wrong.expected, *wrong.links))


def pairs(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield a finding with the GPU pairs that have an unexpected number of links, if any."""
    wrong_pairs = tuple(
        Figure(f"gpu{wrong.one}-gpu{wrong.other}", wrong.found, wrong.expected, "count")
        for wrong in wiring(machine.samples, machine.spec)
        if not isinstance(wrong, StrayLinks)
    )
    if wrong_pairs:
        yield Seen(figures=wrong_pairs)


MOST_PAIRS = 4
"""Maximum number of GPU pairs in a sentence, because incorrect wiring may affect all pairs."""


def kind(finding: Finding) -> str:
    """Return the kind of a fabric fault in words."""
    return finding.device.replace("_", " ")


def pairs_text(finding: Finding) -> str:
    figures = finding.figures
    texts = [
        f"{name} has {f'{found:.0f}' if found else 'no'} {'link' if found == 1 else 'links'}, "
        f"expected {expected:.0f}"
        for name, found, expected, _ in figures[:MOST_PAIRS]
    ]
    more = len(figures) - MOST_PAIRS
    return "; ".join([*texts, *([f"{more} more pairs differ"] if more > 0 else [])])
