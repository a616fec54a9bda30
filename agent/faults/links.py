"""Link faults that PromQL cannot express: NVLink wiring, NVSwitch errors, and slow PCIe links."""

from collections.abc import Iterator

from agent.faults.model import Fault, Finding, Look, Seen
from agent.limits import paths
from agent.limits.resolution import PathKey
from agent.limits.topology import StrayLinks
from agent.model import Figure, GpuKey
from agent.series import SampleStore
from agent.sources import activity, clocks, gpu, kernel_log, pcie


def generations(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield GPUs whose PCIe link is below its maximum generation while the GPU is under load. An
    idle link may use a lower generation to save power."""
    samples, least = machine.samples, fault.bound
    for labels, most in sorted(samples.all(pcie.GENERATION_LIMIT).items()):
        now = samples.point(pcie.GENERATION, *labels)
        if now is None or now.value >= most:
            continue
        since = _under_load(samples, GpuKey(int(labels[0]), labels[1]), least, most - now.value)
        # An older reading may have been taken while the GPU was idle.
        if since is not None and now.at >= since - 1.0:
            figures = (Figure("generation", now.value, most, "count"),)
            yield Seen(GpuKey(int(labels[0]), labels[1]), figures=figures)


def _under_load(samples: SampleStore, key: GpuKey, least: float, missing: float) -> float | None:
    """Return the time of the latest reading in which the GPU computes or saturates its slow link.
    Return None if it does neither, or if this is unknown."""
    clock = samples.value(clocks.CLOCK, *key.labels, "sm")
    most = samples.value(clocks.CLOCK_LIMIT, *key.labels, "sm")
    # Thermal and power throttling do not reduce clocks as far.
    low = clock is not None and most is not None and clock < 0.3 * most
    if low or samples.value(gpu.UTILIZATION, *key.labels) == 0:
        return None  # the job has ended but is still part of means; clock and link slow down
    active = samples.point(activity.ACTIVITY, *key.labels)
    if active is not None and active.value >= least:
        return active.at
    for direction, moved in (("receive", pcie.RECEIVED), ("transmit", pcie.TRANSMITTED)):
        path = PathKey("pcie", f"gpu{key.index}", *key.labels, direction)
        ratio, counted = samples.value(paths.RATIO, *path), samples.point(moved, *key.labels)
        if ratio is not None and ratio * 2**missing >= least and counted is not None:
            return counted.at
    return None


def slots(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield GPUs whose slot is slower than in the system spec sheet although all lanes are active.

    Only systems with a fixed mainboard are checked. In other systems, the same GPU may be installed
    on any mainboard.
    """
    samples = machine.samples
    if machine.spec is None or machine.spec.products is None:
        return
    wanted = samples.where(paths.LIMIT_INFO, path="pcie", origin="hardware", direction="receive")
    for path in sorted({PathKey(*labels[: len(PathKey._fields)]) for labels in wanted}):
        speed, sheet = (samples.value(metric, *path) for metric in (paths.LIMIT, paths.SPEC))
        if (key := path.of) is None or speed is None or sheet is None or speed >= sheet:
            continue
        lanes = samples.value(pcie.WIDTH, *key.labels)
        most = samples.value(pcie.GENERATION_LIMIT, *key.labels)
        if lanes is None or most is None or lanes != samples.value(pcie.WIDTH_LIMIT, *key.labels):
            continue
        figures = (
            Figure("generation", most, None, "count"),
            Figure("lanes", lanes, None, "count"),
            Figure("speed", speed, sheet, "bytes_per_second"),
        )
        yield Seen(key, figures=figures)


def fatal(machine: Look, fault: Fault) -> Iterator[Seen]:
    """Yield each fatal NVSwitch error that is recent or has no timestamp."""
    samples = machine.samples
    for labels, times in sorted(samples.all(kernel_log.SWITCH_ERRORS).items()):
        name, severity, code = labels
        at = samples.value(kernel_log.SWITCH_ERROR_AT, *labels)
        if severity == "fatal" and (at is None or samples.now - at <= fault.bound):
            yield Seen(None, name, (Figure("times", times, None, "count"),), (code,))


def stray(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield GPUs with NVLinks whose remote end is of the wrong kind (GPU or switch)."""
    for wrong in machine.wiring:
        if isinstance(wrong, StrayLinks):
            figures = (Figure("links", len(wrong.links), None, "count"),)
            yield Seen(wrong.gpu, "", figures, (wrong.remote, wrong.expected, *wrong.links))


def pairs(machine: Look, _: Fault) -> Iterator[Seen]:
    """Yield one fault with all GPU pairs that have an unexpected number of NVLinks, if any."""
    wrong_pairs = tuple(
        Figure(f"gpu{wrong.one}-gpu{wrong.other}", wrong.found, wrong.expected, "count")
        for wrong in machine.wiring
        if not isinstance(wrong, StrayLinks)
    )
    if wrong_pairs:
        yield Seen(figures=wrong_pairs)


MOST_PAIRS = 4
"""Maximum number of GPU pairs in the sentence of a finding. Wrong wiring may affect all pairs."""


def kind(finding: Finding) -> str:
    """Return words for the kind of an NVLink fabric fault."""
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
