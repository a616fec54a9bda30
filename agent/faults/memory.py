"""Faults of GPU memory: errors, rows and pages, and what the driver asks for."""

from collections.abc import Iterator
from dataclasses import replace

from agent.faults.model import CRITICAL, SAME_GPU, Fault, HiddenBy, Look, Seen, Term, gpu_fault
from agent.faults.promql import NODE, REMEMBERED, events, increase, of
from agent.faults.templates import COUNT, GPU, by_value
from agent.faults.thresholds import RuleParameters
from agent.faults.xids import HAD
from agent.model import Figure, GpuKey
from agent.sources import ecc, gpu, xid

MOST_ROWS, MOST_PAGES = 512, 63
"""Uncorrected remaps, and retired pages, from which DCGM 4.6 has a GPU replaced."""

NEAR = 0.8
"""Share of those from which the limit is near."""

LOST_DATA, KNOWN_FOR = "=~48|95|140", "40m"
"""XIDs that report lost data, and for how long they do: longer than the counters' own window."""

RESET_GPU = "nvidia-smi --gpu-reset -i GPU"
RESET = f"Drain the node and reset the GPU ({RESET_GPU})"
DIAGNOSE = "Run dcgmi diag -r 3 when the node is free, and open a support case."

NEEDS = {
    1: "GPU reset",
    2: "reboot",
    3: "drain of peer-to-peer traffic",
    4: "drain of peer-to-peer traffic, then GPU reset",
    5: "restart of IMEX",
    6: "bus reset",
    7: "reboot of the system",
}
"""Actions that the driver requests, by `dgx_gpu_recovery_action`."""

ECC, REMAP, RECOVERY = "DgxGpuEccUncorrected", "DgxGpuRowRemapFailure", "DgxGpuRecoveryNeeded"
BY_WORSE = (
    HiddenBy(REMAP, SAME_GPU),
    HiddenBy(ECC, SAME_GPU),
    HiddenBy("DgxGpuXid", SAME_GPU, ('severity="critical"',)),
)
"""One fault of memory: the alert that asks for most. What the driver requests comes from an XID
that says why."""


def memory_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    return (*requested(), *pending(), *uncorrected(parameters), *rising(parameters))


def requested() -> tuple[Fault, ...]:
    """Return the faults of actions that the driver requests."""
    asked = Term(
        lambda found: NEEDS.get(int(found.figures[0].value), f"{found.figures[0].value:.0f}"),
        by_value(NEEDS) + f"{{{{ if gt $value {max(NEEDS)}.0 }}}}{COUNT}{{{{ end }}}}",
    )
    return (
        gpu_fault(
            alert=RECOVERY,
            kind="recovery_needed",
            severity=CRITICAL,
            when=of(gpu.RECOVERY_ACTION) > 0,
            hold="3m",
            sentence=("the driver requests recovery: {asked}",),
            figure="action",
            terms={"asked": asked},
            do="Drain the node and do what the driver requests; the preceding XID errors say why "
            "(dgx-telemetry check).",
            hidden_by=BY_WORSE,
        ),
        gpu_fault(
            alert=REMAP,
            kind="remap_failure",
            severity=CRITICAL,
            when=of(ecc.REMAP_FAILURE) > 0,
            sentence=("a memory row could not be remapped, the GPU is due for replacement",),
            do="Drain the node, take the GPU out of use and open a support case.",
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
            sentence=(f"{what}, and broken memory is still in use",),
            do=f"Drain the node, let its jobs end, then {do}.",
            hidden_by=(
                *BY_WORSE,
                HiddenBy(RECOVERY, SAME_GPU),
                HiddenBy("DgxGpuXid", SAME_GPU, ('xid="94"',)),
            ),
        )


def ecc_growth(over: str, severity: str) -> str:
    """Growth of ECC errors: under MIG a GPU reports the aggregate ones alone."""
    return f"max without (lifetime) ({increase(ecc.ERRORS, over, severity=severity)})"


def uncorrected(parameters: RuleParameters) -> tuple[Fault, Fault]:
    """Data was lost. An alert needs the growth, and an XID error of late that reports the same says
    it better; one look finds the errors since the driver was loaded, which a reset ends."""
    window = parameters.thresholds.event_window
    grown = ecc_growth(parameters.over(window), "uncorrected")
    reported = events(
        xid.ERRORS, parameters.over(KNOWN_FOR), parameters.over(REMEMBERED), HAD, xid=LOST_DATA
    )
    return (
        gpu_fault(
            alert=ECC,
            kind="ecc_uncorrected",
            severity=CRITICAL,
            when=f"{grown} > 0 unless on ({NODE}, uuid) ({reported})",
            look=lambda machine: _errors(machine, "volatile"),
            summary="uncorrected memory errors, data lost",
            sentence=(
                "{errors:uncorrected ECC error|uncorrected ECC errors} since the driver was loaded",
            ),
            description=f"{GPU} had {COUNT} uncorrected ECC errors in the last {window} (limit 0).",
            do=f"Stop the job: its results are in doubt. {RESET}; if errors come back, open a "
            "support case.",
            hidden_by=(HiddenBy(REMAP, SAME_GPU),),
        ),
        Fault(
            alert=ECC,
            kind="ecc_lifetime",
            fires=lambda _: "",
            look=lambda machine: _errors(machine, "aggregate"),
            sentence=(
                "{errors:uncorrected ECC error|uncorrected ECC errors} over its life; those since "
                "the driver was loaded are not reported, as under MIG",
            ),
            do="See dmesg for XID 48, 63, 64, 94 or 95 of this GPU: after a recent one, stop its "
            "jobs and reset it; else these errors are old.",
        ),
    )


def _errors(machine: Look, wanted: str) -> Iterator[Seen]:
    """Those over the whole life only of a GPU that does not report those since the driver was
    loaded."""
    found = machine.samples.where(ecc.ERRORS, severity="uncorrected")
    for (index, uuid, severity, lifetime), errors in sorted(found.items()):
        other = (index, uuid, severity, "volatile") in found
        if errors and lifetime == wanted and (wanted == "volatile" or not other):
            yield Seen(GpuKey(int(index), uuid), figures=(Figure("errors", errors, None, "count"),))


def rising(parameters: RuleParameters) -> tuple[Fault, ...]:
    """Memory that wears out, before it costs a job. Corrected errors count by the hour: one look
    does not find them."""
    limits = parameters.thresholds
    grown = ecc_growth(parameters.over(limits.ecc_corrected_window), "corrected")
    usual = gpu_fault(
        alert="DgxGpuEccRising",
        hold="3m",
        summary="memory wears out",
        do=DIAGNOSE,
        hidden_by=BY_WORSE,
    )
    return (
        replace(
            usual,
            labels={"sign": "corrected"},
            when=f"{grown} >= {limits.ecc_corrected}",
            description=f"{GPU} corrected {COUNT} memory errors in the last "
            f"{limits.ecc_corrected_window} (limit {limits.ecc_corrected}).",
        ),
        replace(
            usual,
            labels={"sign": "rows"},
            kind="rows_near",
            when=of(ecc.REMAPPED_ROWS, severity="uncorrected") >= round(MOST_ROWS * NEAR),
            sentence=("{rows:.0f} of {rows_limit:.0f} rows of memory are remapped",),
            figure="rows",
            limit=MOST_ROWS,
        ),
        replace(
            usual,
            labels={"sign": "pages"},
            kind="pages_near",
            when=of(ecc.RETIRED_PAGES).sum_without("cause") >= round(MOST_PAGES * NEAR),
            sentence=("{pages:.0f} of {pages_limit:.0f} pages of memory are retired",),
            figure="pages",
            limit=MOST_PAGES,
        ),
    )
