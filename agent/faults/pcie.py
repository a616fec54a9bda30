"""Faults of PCIe: links with fewer lanes, a lower generation, or errors."""

from collections.abc import Iterator

from agent.faults.model import SAME_GPU, Fault, HiddenBy, Look, Seen, gpu_fault
from agent.faults.promql import GPU as ONE_GPU
from agent.faults.promql import Condition, Recording, Vector, grown, increase, of, one, pick, rate
from agent.faults.thresholds import RuleParameters
from agent.faults.windows import FaultSamples
from agent.limits import paths
from agent.limits.resolution import PathKey
from agent.model import GPU_LABELS, Figure, GpuKey
from agent.series import SampleStore
from agent.sources import activity, clocks, gpu, pcie

DEGRADED = "DgxPcieDegraded"
RETRAIN = (
    "Nothing is lost: keep the output of `lspci -vv` (LnkSta), and let the job end. Then drain the "
    "node and reboot it; if that does not help, open a support case."
)

REPLAYS = 0.001
"""PCIe replays a second and lane that a sound link may have, doubled by each generation (DCGM 4.6;
its limits of the first two generations are a quarter higher)."""

LEAST_REPLAYS = 0.01
"""Limit of a link of few lanes: some replays within minutes come by chance."""

LOW_CLOCK = 0.3
"""Share of the highest SM clock below which a GPU rests; heat and power leave more of it."""

AT_ONCE = 1.0
"""Seconds: a generation that was read earlier than this before the load was seen may be the
generation at rest."""


def pcie_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    return (LANES, slow_generation(parameters), SLOT, replays(parameters))


LANES = gpu_fault(
    alert=DEGRADED,
    kind="pcie_lanes",
    when=of(pcie.WIDTH) < of(pcie.WIDTH_LIMIT),
    hold="5m",
    labels={"sign": "width"},
    summary="PCIe link has lost lanes",
    sentence=("its PCIe link has lost lanes: x{lanes:.0f}", " instead of x{lanes_limit:.0f}"),
    figure="lanes",
    limit=pcie.WIDTH_LIMIT,
    do=RETRAIN,
)
"""The link has fewer lanes than its slot."""


def slow_link(parameters: RuleParameters) -> tuple[Recording, Recording]:
    """Return the records of a link below its generation for all of 15 minutes, and of load: the GPU
    works, or its data fill the capacity of the slower link (each generation carries twice the one
    before). The fault must be known for that long, under any labels of its target."""
    over, least = parameters.over("15m"), parameters.thresholds.loaded_share
    fastest = f"max_over_time({pcie.GENERATION}[{over}])"
    watched = f"count_over_time({pcie.GENERATION}[{parameters.over('5m')}] offset {over})"
    moved = f"avg_over_time({pick(paths.RATIO, path='pcie')}[{over}])"
    slower = one(f"2 ^ ({pcie.GENERATION_LIMIT} - {pcie.GENERATION})", *GPU_LABELS)
    loaded = f"avg_over_time({activity.ACTIVITY}[{over}]) >= {least:g}"
    full = f"{moved} * on ({ONE_GPU}) group_left () {slower} >= {least:g}"
    below = f"{fastest} < {pcie.GENERATION_LIMIT} and on ({ONE_GPU}) {watched}"
    loads = f"{loaded} or on ({ONE_GPU}) ({full})"
    return Recording(SLOW, below, held=True), Recording(LOADED, loads, held=True)


SLOW, LOADED = "instance_gpu:dgx_pcie_generation:below15m", "instance_gpu:dgx_pcie:loaded15m"


def slow_generation(parameters: RuleParameters) -> Fault:
    """A lower generation all the while under load."""
    least = parameters.thresholds.loaded_share
    return gpu_fault(
        alert=DEGRADED,
        kind="pcie_generation",
        when=f"{SLOW} and on ({ONE_GPU}) {LOADED}",
        look=lambda machine: _generations(machine.samples, least),
        hold="5m",
        labels={"sign": "generation"},
        summary="PCIe link slower than its slot",
        sentence=(
            "its PCIe link is slower than its slot under load: generation {generation:.0f}",
            " of {generation_limit:.0f}",
        ),
        figure="generation",
        do=RETRAIN,
    )


def _generations(samples: SampleStore, least: float) -> Iterator[Seen]:
    """Yield links below their generation, only under load: a link at rest may run slower to save
    power."""
    for labels, most in sorted(samples.all(pcie.GENERATION_LIMIT).items()):
        now = samples.point(pcie.GENERATION, *labels)
        if now is None or now.value >= most:
            continue
        since = _under_load(samples, GpuKey(int(labels[0]), labels[1]), least, most - now.value)
        if since is not None and now.at >= since - AT_ONCE:
            figures = (Figure("generation", now.value, most, "count"),)
            yield Seen(GpuKey(int(labels[0]), labels[1]), figures=figures)


def _under_load(
    samples: SampleStore, key: GpuKey, least: float, generations: float
) -> float | None:
    """Return the time when the GPU last computed, or filled its slower link; None if it rests or
    that is not known."""
    clock = samples.value(clocks.CLOCK, *key.labels, "sm")
    most = samples.value(clocks.CLOCK_LIMIT, *key.labels, "sm")
    low = clock is not None and most is not None and clock < LOW_CLOCK * most
    if low or samples.value(gpu.UTILIZATION, *key.labels) == 0:
        return None  # the job has ended, though means still show it: the clock falls with the link
    active = samples.point(activity.ACTIVITY, *key.labels)
    if active is not None and active.value >= least:
        return active.at
    for direction, moved in (("receive", pcie.RECEIVED), ("transmit", pcie.TRANSMITTED)):
        path = PathKey("pcie", f"gpu{key.index}", *key.labels, direction)
        ratio, counted = samples.value(paths.RATIO, *path), samples.point(moved, *key.labels)
        if ratio is not None and ratio * 2**generations >= least and counted is not None:
            return counted.at
    return None


def _slots(machine: Look) -> Iterator[Seen]:
    """Slots that offer less than the system's sheet, with all lanes in use.

    Only for systems whose maker chose the slots: in other systems, one GPU may sit in any board.
    """
    samples = machine.samples
    if machine.spec is None or machine.spec.products is None:
        return
    wanted = samples.where(paths.LIMIT_INFO, path="pcie", origin="hardware", direction="receive")
    for path in sorted({PathKey(*labels[: len(PathKey._fields)]) for labels in wanted}):
        key, speed, sheet = (
            path.of,
            samples.value(paths.LIMIT, *path),
            samples.value(paths.SPEC, *path),
        )
        if key is None or speed is None or sheet is None or speed >= sheet:
            continue
        lanes = samples.value(pcie.WIDTH, *key.labels)
        most = samples.value(pcie.GENERATION_LIMIT, *key.labels)
        if lanes is None or most is None or lanes != samples.value(pcie.WIDTH_LIMIT, *key.labels):
            continue
        yield Seen(
            key,
            figures=(
                Figure("generation", most, None, "count"),
                Figure("lanes", lanes, None, "count"),
                Figure("speed", speed, sheet, "bytes_per_second"),
            ),
        )


TOO_MANY = "instance_gpu:dgx_pcie_replays:of_limit15m"


def replay_records(parameters: RuleParameters) -> tuple[Recording, Recording]:
    """Return the limit of each link, replays a second by its generation and lanes, and the replays
    of a quarter of an hour as a multiple of it."""
    limit = f"{REPLAYS:g} * 2 ^ {pcie.GENERATION_LIMIT} * {pcie.WIDTH}"
    limit = f"clamp_min({limit}, {LEAST_REPLAYS:g})"
    rate_now = rate(pcie.REPLAYS, parameters.over("15m"))
    most = "instance_gpu:dgx_pcie_replays:limit"
    return Recording(most, limit, held=True), Recording(TOO_MANY, f"{rate_now} / {most}")


def replays(parameters: RuleParameters) -> Fault:
    """Packets sent again, against the number that a link of its generation may have."""
    text = increase(pcie.REPLAYS, parameters.over("15m"))
    many = grown(pcie.REPLAYS, "15m", text)

    def rows(samples: FaultSamples) -> Vector:
        lanes, generations = of(pcie.WIDTH).rows(samples), of(pcie.GENERATION_LIMIT).rows(samples)
        each = {
            row: max(REPLAYS * 2**generation * lanes[row], LEAST_REPLAYS) * 900
            for row, generation in generations.items()
            if row in lanes
        }
        return {row: n / each[row] for row, n in many.rows(samples).items() if row in each}

    return gpu_fault(
        alert="DgxPcieReplays",
        kind="pcie_replays",
        when=Condition(TOO_MANY, rows, many.asks) > 1,
        hold="10m",
        summary="PCIe link has errors",
        sentence=("its PCIe link repeats packets {times:.3g} times as often as a sound link may",),
        figure="times",
        do="Nothing is lost; copies are slower. Look at `lspci -vv` and `dmesg` (AER), and plan a "
        "stop of the node: reseat the GPU or its riser. If it comes back, open a support case.",
        hidden_by=(HiddenBy(DEGRADED, SAME_GPU),),
    )


SLOT = Fault(
    kind="pcie_slot",
    look=_slots,
    sentence=(
        "its slot offers generation {generation:.0f} x{lanes:.0f}, {speed:.3g} GB/s, "
        "the sheet says {speed_limit:.3g}",
    ),
    do=RETRAIN,
)
