"""Faults of GPU memory: errors, rows and pages, and the driver's requests."""

from collections.abc import Iterator
from functools import partial

from agent.faults.model import CRITICAL, SAME_GPU, WARNING, Fault, HiddenBy, gpu_fault
from agent.faults.promql import NODE, Condition, grown, increase, of, pick, spoken
from agent.faults.records import EventRecords
from agent.faults.thresholds import RuleParameters
from agent.faults.xids import LOST_DATA, xid_records
from agent.sources import ecc, gpu

MOST_ROWS, MOST_PAGES = 512, 63
"""Uncorrected remaps, and retired pages, from which DCGM 4.6 advises to replace a GPU."""

NEAR = 0.8
"""Share of those from which the limit is near."""

RESET_GPU = "`nvidia-smi --gpu-reset -i GPU`"
RESET = f"Drain the node and reset the GPU ({RESET_GPU})"
DIAGNOSE = "No data is lost yet. Run `dcgmi diag -r 3` when the node is free; open a support case."

NEEDS = {
    1: "a reset",
    2: "`reboot`",
    3: "the end of multi-GPU jobs",
    4: "the end of its jobs, then a reset",
    5: "`systemctl restart nvidia-imex`",
    6: "`reboot`",  # nvidia-smi has no reset of the bus
    7: "`reboot`",
}
"""Actions that the driver requests, by `dgx_gpu_recovery_action`."""

ECC, REMAP, RECOVERY = "DgxGpuEccUncorrected", "DgxGpuRowRemapFailure", "DgxGpuRecoveryNeeded"
BY_WORSE = (
    HiddenBy(REMAP, SAME_GPU),
    HiddenBy(ECC, SAME_GPU),
    HiddenBy("DgxGpuXid", SAME_GPU, ('severity="critical"',)),
)
"""A fault of memory sends only the alert with the strongest request. A request of the driver comes
from an XID that says why."""


def memory_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    return (*REQUESTED, *pending(), *uncorrected(parameters), *rising(parameters))


REQUESTED = (
    gpu_fault(
        alert=RECOVERY,
        kind="recovery_needed",
        severity=CRITICAL,
        when=of(gpu.RECOVERY_ACTION) > 0,
        hold="3m",
        summary="driver requests recovery",
        sentence=("the driver requests {word}",),
        figure="action",
        words=NEEDS,
        do=f"Drain the node first. A reset: {RESET_GPU}.",
        hidden_by=BY_WORSE,
    ),
    gpu_fault(
        alert=REMAP,
        kind="remap_failure",
        severity=CRITICAL,
        when=of(ecc.REMAP_FAILURE) > 0,
        summary="replace the GPU",
        sentence=("a memory row could not be remapped: the GPU is due for replacement",),
        do="Drain the node, leave it drained, and open a support case for the GPU.",
    ),
)


def pending() -> Iterator[Fault]:
    """Broken memory that is still in use."""
    rows = (
        *("remap_pending", ecc.REMAP_PENDING, "a row remap is pending"),
        f"reset the GPU ({RESET_GPU})",
    )
    pages = (
        *("pages_pending", ecc.RETIRED_PENDING, "a page retirement is pending"),
        "load the driver again or reboot the node",
    )
    for kind, metric, what, do in (rows, pages):
        yield gpu_fault(
            alert="DgxGpuPagesPending",
            kind=kind,
            when=of(metric) > 0,
            hold="8m",
            labels={"sign": kind.partition("_")[0].replace("remap", "rows")},
            summary="broken memory in use",
            sentence=(f"{what}, and broken memory is still in use",),
            do=f"Drain the node, let its jobs end, then {do}.",
            hidden_by=(
                *BY_WORSE,
                HiddenBy(RECOVERY, SAME_GPU),
                HiddenBy("DgxGpuXid", SAME_GPU, ('xid="94"',)),
            ),
        )


def ecc_records(parameters: RuleParameters) -> EventRecords:
    """Uncorrected errors within the window."""
    return EventRecords.of(parameters, ecc.ERRORS, of_life=True, severity="uncorrected")


STOP = f"Stop the job: its results are in doubt. {RESET}."


def uncorrected(parameters: RuleParameters) -> Iterator[Fault]:
    """Data was lost. A recent XID error that reports the same says it better. Errors since the
    driver was loaded put results in doubt until a reset, whenever they came."""
    window = parameters.thresholds.event_window
    counted = grown(ecc.ERRORS, window, str(ecc_records(parameters).events), severity="uncorrected")
    of_late = counted.max_without("lifetime") > 0
    reported = pick(xid_records(parameters).events, xid=LOST_DATA)
    yield gpu_fault(
        alert=ECC,
        kind="ecc_uncorrected",
        severity=CRITICAL,
        when=of_late.made(f"{of_late} unless on ({NODE}, uuid) {reported}", of_late.rows),
        hold="90s",
        summary="data lost in memory",
        sentence=(
            "its memory lost data: {errors:uncorrected ECC error|uncorrected ECC errors} "
            f"in the last {spoken(window)}",
        ),
        figure="errors",
        do=STOP,
        hidden_by=(HiddenBy(REMAP, SAME_GPU), HiddenBy("DgxGpuXid", SAME_GPU, ('xid="48"',))),
    )
    yield from errors_before(of_late)


def errors_before(of_late: Condition) -> Iterator[Fault]:
    """Errors that came before the window, or before the agent."""
    volatile, aggregate = (
        of(ecc.ERRORS, severity="uncorrected", lifetime=lifetime)
        for lifetime in ("volatile", "aggregate")
    )
    counted = "{errors:uncorrected ECC error|uncorrected ECC errors} "
    usual = partial(Fault, alert=ECC, severity=CRITICAL, fires=lambda _: "", figure="errors")
    yield usual(
        kind="ecc_since_load",
        when=(volatile > 0).unless(of_late, "uuid"),
        sentence=(f"{counted}since the driver was loaded",),
        do=STOP,
    )
    yield usual(
        kind="ecc_lifetime",
        severity=WARNING,
        when=(aggregate > 0).unless(volatile, "uuid").unless(of_late, "uuid"),
        sentence=(
            f"{counted}over its life; those since the driver was loaded are not reported, as "
            "under MIG",
        ),
        do="See `dmesg` for XID 48, 63, 64, 94 or 95 of this GPU: after a recent one, stop its "
        "jobs and reset it; else these errors are old.",
    )


def rising(parameters: RuleParameters) -> tuple[Fault, ...]:
    """Signs of memory that wears out, before it costs a job."""
    limits = parameters.thresholds
    window, most = limits.ecc_corrected_window, limits.ecc_corrected
    rows = of(ecc.REMAPPED_ROWS, severity="uncorrected") >= round(MOST_ROWS * NEAR)
    pages = of(ecc.RETIRED_PAGES).sum_without("cause") >= round(MOST_PAGES * NEAR)
    text = increase(ecc.ERRORS, parameters.over(window), severity="corrected")
    counted = grown(ecc.ERRORS, window, text, severity="corrected")
    corrected = counted.max_without("lifetime") >= most  # under MIG aggregate counters alone
    of_errors = (
        f"{{errors:memory error was|memory errors were}} corrected in the last {spoken(window)}"
    )
    due = "are replaced by spares; the GPU is due for replacement at"
    signs = (
        ("corrected", "ecc_rising", corrected, "errors", f"{of_errors} (limit {most})"),
        ("rows", "rows_near", rows, "rows", f"{{rows:.0f}} memory rows {due} {MOST_ROWS}"),
        ("pages", "pages_near", pages, "pages", f"{{pages:.0f}} memory pages {due} {MOST_PAGES}"),
    )
    return tuple(
        gpu_fault(
            alert="DgxGpuEccRising",
            kind=kind,
            when=when,
            hold="3m",
            labels={"sign": sign},
            summary="memory wears out",
            sentence=(sentence,),
            figure=figure,
            do=DIAGNOSE,
            hidden_by=BY_WORSE,
        )
        for sign, kind, when, figure, sentence in signs
    )
