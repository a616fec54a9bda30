"""Faults of whole GPUs: missing, unexpected, too hot, held down."""

from collections.abc import Iterator

from agent.faults import places
from agent.faults.condition import Condition, Difference, of
from agent.faults.model import CRITICAL, WARNING, Fault, Look, Seen, Term
from agent.faults.parameters import RuleParameters
from agent.faults.promql import LOST, NODE, REMEMBERED, pick
from agent.faults.templates import COUNT, GPU, WHOLE, look_up, sum_of
from agent.faults.templates import NODE as MACHINE
from agent.model import Figure, Finding, GpuKey, Metric, Reason
from agent.sources import clocks, gpu, system, temperature
from agent.sources.agent_health import ABSENT_VALUES

MISSING, HOT = "DgxGpuMissing", "DgxGpuHot"

SLOWDOWN = "hardware slowdown"
HARMFUL = {
    "software_thermal": "thermal slowdown",
    "hardware_thermal": "thermal slowdown",
    "power_brake": "power brake",
    "hardware_slowdown": SLOWDOWN,
}
"""Throttle reasons that are trouble; a power cap alone is health."""

ONE = ("instance", "job", "uuid")
REPLACE = (
    "Drain the node, read its XID errors (dmesg -T | grep -i xid) and reboot it after its jobs "
    "have ended or saved a checkpoint: a lost GPU cannot be reset. If it does not come back, open "
    "a support case."
)


def gpu_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    """In the order of their weight."""
    return (*missing(), no_driver(parameters), UNEXPECTED, *hot(parameters), held_down())


def missing() -> tuple[Fault, Fault]:
    """Named, where the agent saw it go; counted, where it never saw it."""
    counts = [look_up(m, WHOLE, "instance", "job") for m in (system.GPUS, system.GPUS_EXPECTED)]
    answer = f"{counts[0]} of {counts[1]} GPUs answer."
    few = f"({counts[0]} of {counts[1]} answer)"
    return (
        Fault(
            alert=MISSING,
            severity=CRITICAL,
            place=places.GPU,
            when=LOST,
            hold="1m",
            labels={"sign": "lost"},
            summary=f"missing {few}",
            description=f"{GPU} is gone: {answer}",
            do=REPLACE,
        ),
        Fault(
            alert=MISSING,
            kind="gpus_missing",
            severity=CRITICAL,
            place=places.NODE,
            when=f"{system.GPUS_EXPECTED} - {system.GPUS} > 0 unless on ({NODE}) {LOST}",
            look=_counted,
            hold="1m",
            labels={"sign": "fewer"},
            summary=f"GPUs missing {few}",
            sentence=(
                "{gpus:.0f} of {gpus_limit:.0f} GPUs answer",
                ", {n:~GPU|GPUs} {names} not among them",
            ),
            description=f"{COUNT} GPUs of {MACHINE} are missing: {answer}",
            do=REPLACE,
        ),
    )


def no_driver(parameters: RuleParameters) -> Fault:
    """The machine had GPUs, and has no driver any more."""
    no_driver = pick(ABSENT_VALUES, metric=str(system.GPUS), reason=Reason.NO_DRIVER)
    return Fault(
        alert=MISSING,
        severity=CRITICAL,
        place=places.NODE,
        when=f"last_over_time({system.GPUS_EXPECTED}[{parameters.over(REMEMBERED)}]) > 0 "
        f"and on ({NODE}) {no_driver}",
        hold="5m",
        labels={"sign": "no_driver"},
        summary="no GPU answers",
        description=f"0 of {COUNT} GPUs of {MACHINE} answer: there is no driver any more.",
        do="Look at nvidia-smi and at the kernel's log (dmesg); load the driver or reboot.",
    )


UNEXPECTED = Fault(
    kind="gpus_unexpected",
    severity=WARNING,
    when=of(system.GPUS) > of(system.GPUS_EXPECTED),
    sentence=(
        "{gpus:.0f} GPUs answer where the system has {gpus_limit:.0f}: "
        "is `system` in the configuration right?",
    ),
    figure="gpus",
    limit=system.GPUS_EXPECTED,
    do="Set `system` in the configuration.",
)


def _counted(machine: Look) -> Iterator[Seen]:
    """Which GPUs do not answer, as far as the numbers of the others show."""
    samples = machine.samples
    found, expected = samples.value(system.GPUS), samples.value(system.GPUS_EXPECTED)
    if found is not None and expected is not None and found < expected:
        known = {int(labels["gpu"]) for labels in samples.labelled(gpu.INFO)}
        gap = sorted(set(range(max(known, default=0))) - known)
        figures = (Figure("gpus", found, expected, "count"),)
        yield Seen(figures=figures, names=tuple(map(str, gap)))


def hot(parameters: RuleParameters) -> tuple[Fault, Fault]:
    """Core or memory at the limit that the GPU itself states."""
    most = of(temperature.LIMIT, limit="memory")
    left = Difference(most, of(temperature.MEMORY_TEMPERATURE), ignored="limit")
    limits = {
        "core": sum_of(temperature.TEMPERATURE, temperature.MARGIN, WHOLE, *ONE),
        "memory": look_up(temperature.LIMIT, WHOLE, *ONE, limit="memory"),
    }

    def fault(sensor: str, kind: str, left: Condition, degrees: Metric) -> Fault:
        return Fault(
            alert=HOT,
            kind=kind,
            severity=CRITICAL,
            place=places.GPU,
            when=left <= parameters.thresholds.hot_margin,
            unwatched=True,
            hold="2m",
            labels={"sensor": sensor},
            summary="at its temperature limit",
            sentence=(f"the {sensor} is {{where}} its temperature limit",),
            figure="margin",
            unit="celsius",
            terms={"where": Term(lambda found: _where(found.figures[0].value), "")},
            description=f"The {sensor} of {GPU} is at {look_up(degrees, WHOLE, *ONE)} °C, its "
            f"limit is {limits[sensor]} °C.",
            do="Check the cooling: fans, inlet temperature, dust; compare with its neighbours.",
        )

    return (
        fault("core", "too_hot", of(temperature.MARGIN), temperature.TEMPERATURE),
        fault("memory", "memory_too_hot", left, temperature.MEMORY_TEMPERATURE),
    )


def _where(margin: float) -> str:
    if round(margin) == 0:
        return "at"
    return f"{abs(margin):.0f} °C {'below' if margin > 0 else 'above'}"


def held_down() -> Fault:
    """The clocks are low at this moment; DgxGpuThrottled counts the time of a quarter hour."""
    return Fault(
        alert="DgxGpuThrottled",
        kind="clocks_held_down",
        severity=WARNING,
        look=_held_down,
        unwatched=True,
        sentence=("{reasons}", ": SM clock at {clock:.0f} of {clock_limit:.0f} MHz"),
        terms={"reasons": Term(_reasons, "")},
        do="Check the cooling and the power supplies.",
    )


def _reasons(finding: Finding) -> str:
    """Hardware slowdown comes with each of the others: it is named alone."""
    named = dict.fromkeys(HARMFUL[reason] for reason in finding.names)
    return ", ".join([name for name in named if name != SLOWDOWN] or [SLOWDOWN])


def _held_down(look: Look) -> Iterator[Seen]:
    samples = look.samples
    for (index, uuid), mask in sorted(samples.all(clocks.REASONS).items()):
        held = sorted(
            t.reason for t in clocks.THROTTLES if t.bit & int(mask) and t.reason in HARMFUL
        )
        now, most = (
            samples.value(m, index, uuid, "sm") for m in (clocks.CLOCK, clocks.CLOCK_LIMIT)
        )
        figures = () if now is None else (Figure("clock", now, most, "hertz"),)
        if held:
            yield Seen(GpuKey(int(index), uuid), figures=figures, names=tuple(held))
