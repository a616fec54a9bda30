"""Faults of whole GPUs: missing, unexpected, too hot, held down."""

from collections.abc import Iterator

from agent.diagnosis.accounting import STATE, UNOBSERVED_SECONDS
from agent.diagnosis.advice import ADVICE
from agent.faults.lost import GONE
from agent.faults.model import (
    CRITICAL,
    SAME_GPU,
    SAME_NODE,
    Fault,
    HiddenBy,
    Look,
    Seen,
    gpu_fault,
    node_fault,
)
from agent.faults.promql import NODE, REMEMBERED, Recording, grown, increase, of, one, pick
from agent.faults.thresholds import RuleParameters
from agent.faults.windows import Ask, Counted
from agent.model import (
    GPU_LABELS,
    Absence,
    Cause,
    Figure,
    Finding,
    GpuKey,
    Reason,
    State,
)
from agent.sources import (
    activity,
    agent_health,
    clocks,
    ecc,
    fabric,
    gpu,
    memory,
    nvlink,
    pcie,
    power,
    process,
    system,
    temperature,
)
from agent.sources.agent_health import ABSENT_VALUES, SOURCE_UP

MISSING, HOT, NOT_ANSWERING = "DgxGpuMissing", "DgxGpuHot", "DgxGpuNotAnswering"

SLOWDOWN = "hardware slowdown"
HARMFUL = {
    "software_thermal": "thermal slowdown",
    "hardware_thermal": "thermal slowdown",
    "power_brake": "power brake",
    "hardware_slowdown": SLOWDOWN,
}
"""Throttle reasons that need attention; a power cap alone is healthy."""

NVML = "nvml"
"""The source that is down if there is no driver."""

DRIVER_HANGS = of(SOURCE_UP, source=NVML).equals(0).having(of(ABSENT_VALUES, reason=Reason.STALLED))
BY_DRIVER = (HiddenBy("DgxAgentBlind", SAME_NODE, ('sign="driver"',)),)

REPLACE = (
    "Drain the node, read its XID errors (`dmesg -T | grep -i xid`) and reboot it after its jobs "
    "have ended or saved a checkpoint: a lost GPU cannot be reset. If it does not come back, open "
    "a support case."
)

LOAD = (
    "Drain the node. Look at `nvidia-smi` and `dmesg | grep -i nvrm`; load the driver (`modprobe "
    "nvidia`) or reboot."
)

CALLS_HANG = ("driver calls hang or fail: {metrics:metric is|metrics are} absent", " ({names})")
RESET_SILENT = (
    "Look at `dmesg -T | grep -i xid` for 119 or 120 and at `nvidia-smi -q -i GPU`; if it goes on, "
    "drain the node, let its job end, and reset the GPU or reboot."
)


def gpu_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    return (
        *missing(parameters),
        UNEXPECTED,
        *not_answering(parameters),
        *hot(parameters),
        CLOCKS_HELD_DOWN,
    )


FEWER = of(system.GPUS_EXPECTED).minus(of(system.GPUS)) > 0


def missing(parameters: RuleParameters) -> tuple[Fault, ...]:
    """Missing GPUs are named if the agent saw them go, counted if it never saw them; without a
    driver all are missing."""
    expected = f"last_over_time({system.GPUS_EXPECTED}[{parameters.over(REMEMBERED)}])"
    had = grown(system.GPUS_EXPECTED, REMEMBERED, expected, Counted.PRESENCE)
    no_driver = of(ABSENT_VALUES, metric=str(system.GPUS), reason=Reason.NO_DRIVER)
    return (
        gpu_fault(
            alert=MISSING,
            kind="gpu_lost",
            severity=CRITICAL,
            when=GONE,
            hold="1m",
            labels={"sign": "lost"},
            summary="missing",
            sentence=("it no longer answers",),
            do=REPLACE,
        ),
        node_fault(
            alert=MISSING,
            kind="gpus_missing",
            severity=CRITICAL,
            when=FEWER.unless(GONE),
            hold="1m",
            labels={"sign": "fewer"},
            summary="GPUs missing",
            sentence=("{gpus:GPU is|GPUs are} missing",),
            figure="gpus",
            do=REPLACE,
        ),
        node_fault(
            alert=MISSING,
            kind="gpus_gone",
            severity=CRITICAL,
            when=no_driver.sum_without("metric", "reason").having(had),
            hold="5m",
            labels={"sign": "no_driver"},
            summary="no GPU answers",
            sentence=("none of its GPUs answers: the driver is gone",),
            do=LOAD,
        ),
    )


UNEXPECTED = Fault(
    kind="gpus_unexpected",
    when=of(system.GPUS) > of(system.GPUS_EXPECTED),
    sentence=(
        "{gpus:.0f} GPUs answer where {gpus_limit:.0f} are expected: "
        "are `system` and `gpus` in the configuration right?",
    ),
    figure="gpus",
    limit=system.GPUS_EXPECTED,
    do="Set `system` or `gpus` in the configuration.",
)


SLOWEST = 1
"""Seconds of a read from which the GPU does not answer in time (`agent/polling/gpu_threads.py`)."""

FEWEST = 2
"""Failed reads within seven minutes, and rises of their count, from which the alert fires: one read
may fail by chance, and is tried again after 10 s."""

SILENT = (Reason.NOT_ANSWERING, Reason.FAILED, Reason.STALLED)
"""Reasons of absence that are a fault of the value's GPU; the weightier first."""


def not_answering(parameters: RuleParameters) -> tuple[Fault, ...]:
    """A GPU whose driver calls hang or fail while those of others are answered.

    The alerts look at the reads of minutes. One look finds it by its absent values: its own reads
    are the first, for which the driver may have to start the GPU.
    """

    over = parameters.over("7m")
    slow = f"{agent_health.GPU_READ_SECONDS} > {SLOWEST}"
    failing = f"{increase(agent_health.GPU_READ_FAILURES, over)} >= {FEWEST} "
    failing += f"and changes({agent_health.GPU_READ_FAILURES}[{over}]) >= {FEWEST}"
    rules = (
        ("slow", slow, f"driver calls took up to {{seconds:duration}} (limit {SLOWEST} s)"),
        ("failing", failing, f"{{seconds:.0f}} reads failed in the last 7 min (limit {FEWEST})"),
    )
    return (
        *(
            gpu_fault(
                alert=NOT_ANSWERING,
                when=when,
                hold="1m",
                labels={"sign": sign},
                summary="driver calls hang or fail",
                sentence=(f"{text}, those of other GPUs did not",),
                figure="seconds",
                do=RESET_SILENT,
                hidden_by=BY_DRIVER,
            )
            for sign, when, text in rules
        ),
        Fault(
            alert=NOT_ANSWERING,
            kind="gpu_not_answering",
            look=_silent,
            hold="1m",
            sentence=CALLS_HANG,
            do=RESET_SILENT,
        ),
    )


def of_silent(absence: Absence) -> bool:
    """A value that is absent because driver calls of a GPU fail or hang."""
    of_gpu = absence.metric.labels[:2] == GPU_LABELS and absence.metric is not STATE
    timed_out = absence.detail.startswith("nvml")  # else it is only late
    return (
        of_gpu and absence.reason in SILENT and (absence.reason is not Reason.STALLED or timed_out)
    )


def _silent(machine: Look) -> Iterator[Seen]:
    if DRIVER_HANGS.rows(machine.samples):
        return  # the driver has the finding
    found: dict[GpuKey, list[Absence]] = {}
    for absence in machine.absences:
        if of_silent(absence) and len(absence.labels) > 1:
            key = GpuKey(int(absence.labels[0]), absence.labels[1])
            found.setdefault(key, []).append(absence)
    for key, absences in sorted(found.items()):
        count = len({absence.metric.name for absence in absences})
        first = min(absences, key=lambda absence: SILENT.index(absence.reason))
        yield Seen(key, figures=(Figure("metrics", count, None, "count"),), names=(first.detail,))


ANSWERED = (
    *(nvlink.LINKS, fabric.FABRIC_STATE, ecc.ERRORS, ecc.REMAPPED_ROWS, activity.SM_ACTIVE),
    *(pcie.WIDTH, pcie.WIDTH_LIMIT, pcie.GENERATION, pcie.GENERATION_LIMIT, pcie.REPLAYS),
    *(temperature.MARGIN, power.POWER, power.POWER_LIMIT, memory.USED, process.PROCESSES),
    *(clocks.CLOCK, clocks.CLOCK_LIMIT, clocks.REASONS, gpu.RECOVERY_ACTION),
)
"""Metrics that GPUs of the same model answer alike; a rule on them is silent on a GPU without
them."""

REFUSED = (Reason.UNSUPPORTED, Reason.MISSING, Reason.DENIED, Reason.DRIVER)
SERIES = (
    "dgx_(gpu_(clock(_limit)?_hertz|ecc_errors_total|memory_used_bytes|power(_limit)?_watts|"
    "processes|recovery_action|remapped_rows_total|sm_active_ratio|temperature_margin_celsius|"
    "throttle_state)|nvlink_(fabric_state|links)|pcie_((generation|width)(_limit)?|replays_total))"
)
ANSWERS = Recording(
    "instance_gpu:dgx_agent_absent_values:answered",
    "count without (metric) (group without (severity, lifetime, clock) "  # labels of some of them
    f'(label_replace({{__name__=~"{SERIES}"}}, "metric", "$1", "__name__", "(.+)")) '
    f"and on ({NODE}, metric) {pick(ABSENT_VALUES, reason='=~' + '|'.join(REFUSED))})",
    held=True,
)
"""Number of values that a GPU has, of those that some GPU of its machine refuses."""

COMPARED = Recording(
    "instance_gpu_model:dgx_agent_absent_values:answered",
    f"({ANSWERS} or on ({NODE}, uuid) {UNOBSERVED_SECONDS} * 0 and on ({NODE}) {ANSWERS}) "
    f"* on ({NODE}, uuid) group_left (model) {one(str(gpu.INFO), 'uuid', 'model')}",
    held=True,
)
"""The same with the model, also of a GPU that has none of them."""

OF_MODEL = f"{NODE}, model"


def _refusing(machine: Look) -> Iterator[Seen]:
    samples, refused = machine.samples, dict[GpuKey, list[str]]()
    models = {labels["uuid"]: labels["model"] for labels in samples.labelled(gpu.INFO)}
    for absence in machine.absences:
        if absence.metric not in ANSWERED or absence.reason not in REFUSED:
            continue
        index, uuid, *_ = absence.labels
        answer = {labels[1] for labels in samples.all(absence.metric)}
        model = models.get(uuid)
        siblings = [one for one, of_one in models.items() if of_one == model and one != uuid]
        if uuid not in answer and 2 * len(answer.intersection(siblings)) > len(siblings):
            refused.setdefault(GpuKey(int(index), uuid), []).append(absence.metric.name)
    for key, words in sorted(refused.items()):
        yield Seen(key, names=(", ".join(dict.fromkeys(words)),))


REFUSING = gpu_fault(
    alert=NOT_ANSWERING,
    kind="gpu_refuses",
    when=f"{COMPARED} < on ({OF_MODEL}) group_left () quantile by ({OF_MODEL}) (0.5, {COMPARED})",
    look=_refusing,
    hold="15m",
    labels={"sign": "refuses"},
    summary="reports less than GPUs like it",
    sentence=("the driver refuses values that other GPUs of its model have", ": {0}"),
    do="Some of its alerts cannot fire: `dgx-telemetry check` names the values. Drain the node, "
    "let its job end, and reset the GPU or reboot; if it goes on, open a support case.",
    hidden_by=(*BY_DRIVER, HiddenBy(NOT_ANSWERING, SAME_GPU, ('sign=~"slow|failing"',))),
)


def refusing_faults(_: RuleParameters) -> tuple[Fault, ...]:
    """Return the fault of a GPU for which most rules find nothing."""
    return (REFUSING,)


def hot(parameters: RuleParameters) -> tuple[Fault, ...]:
    """Core or memory at the limit that the GPU itself states."""
    most = of(temperature.LIMIT, limit="memory")
    left = most.minus(of(temperature.MEMORY_TEMPERATURE), "limit")
    margin = parameters.thresholds.hot_margin
    sensors = (
        ("core", "too_hot", of(temperature.MARGIN)),
        ("memory", "memory_too_hot", left),
    )
    return tuple(
        gpu_fault(
            alert=HOT,
            kind=kind,
            severity=CRITICAL,
            when=degrees <= margin,
            hold="2m",
            labels={"sensor": sensor},
            summary="at its temperature limit",
            sentence=(
                f"the {sensor} {f'is within {margin:g} °C of' if margin else 'has reached'} its "
                "temperature limit",
            ),
            figure="margin",
            unit="celsius",
            do="It slows itself down; leave its job. See `nvidia-smi -q -d TEMPERATURE -i GPU` and "
            "`ipmitool sdr type Fan`, and check the cooling: fans, inlet air, dust.",
        )
        for sensor, kind, degrees in sensors
    )


def _reasons(finding: Finding) -> str:
    """Return the reasons by name; hardware slowdown accompanies the others, and is named only
    alone."""
    named = dict.fromkeys(HARMFUL[reason] for reason in finding.names)
    return ", ".join([name for name in named if name != SLOWDOWN] or [SLOWDOWN])


def _cure(finding: Finding) -> str:
    """The cure of the GPU's state that the same reason causes; of two reasons both."""
    power, thermal = "power_brake" in finding.names, any("thermal" in n for n in finding.names)
    causes = [Cause.THERMAL] * (thermal or not power) + [Cause.POWER] * (power or not thermal)
    return " ".join(ADVICE[State.THROTTLED, cause] for cause in causes)


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


CLOCKS_HELD_DOWN = Fault(
    alert="DgxGpuThrottled",
    kind="clocks_held_down",
    fires=lambda _: "",
    look=_held_down,
    reads=frozenset(map(Ask, (clocks.REASONS, clocks.CLOCK, clocks.CLOCK_LIMIT))),
    sentence=("{reasons}", ": SM clock at {clock:.0f} of {clock_limit:.0f} MHz"),
    terms={"reasons": _reasons},
    do=_cure,
)
"""The clocks are low at this moment; DgxGpuThrottled counts the time of a quarter hour."""
