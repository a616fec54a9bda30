"""The GPU: its time by state, its computations, its limits, its faults."""

from agent.diagnosis import job_watch, pulses
from agent.diagnosis.accounting import STATE_SECONDS, UNOBSERVED_SECONDS
from agent.model import State
from agent.sources import (
    activity,
    clocks,
    ecc,
    gpu,
    memory,
    power,
    process,
    temperature,
    workload,
    xid,
)
from dashboards.board import ANY, LOST, Board, Row
from dashboards.kinds import Column, graph, table, wide
from dashboards.queries import (
    GPU,
    GPU_NAME,
    RANGE,
    RATE,
    Labels,
    Query,
    Value,
    either,
    grown,
    now,
    rate,
    select,
    spread,
    time_in,
)
from dashboards.scope import ACTIVITY, RHYTHM, board, firing_alerts, goodput, time_panels

JOB: Labels = ("instance", *(name for name in workload.JOB_INFO.labels if name != "uuid"))
GPM = "on GPUs before Hopper, which do not count it"

OBSERVED, NOT_OBSERVED = grown(STATE_SECONDS, GPU), grown(UNOBSERVED_SECONDS, GPU)
ALL_TIME = Value(f"{NOT_OBSERVED.expr} + {OBSERVED.expr}", "s")

TIME = Row(
    "Where does the time of each GPU go?",
    (
        *time_panels("Time by state and cause", (8, 8)),
        table(
            "Time lost by each GPU",
            "Share of each GPU's time in this range for which it waited, was held by a process "
            "that did nothing, or was slowed down; and for which nothing could be said of it.",
            (
                Column("Starved", time_in(State.STARVED, GPU), LOST),
                Column("Held", time_in(State.HELD, GPU), LOST),
                Column("Throttled", time_in(State.THROTTLED, GPU), LOST),
                Column("Not observed", NOT_OBSERVED.over(ALL_TIME), LOST),
            ),
            overrides=[wide("gpu", 45), wide("Not observed", 105)],
            width=8,
            height=10,
        ),
        goodput(
            GPU,
            lambda which: grown(STATE_SECONDS, GPU, state=which),
            grown(activity.TENSOR_SECONDS, GPU).over(
                grown(STATE_SECONDS, GPU, state=State.BUSY.value)
            ),
        ),
    ),
)

WORK = Row(
    "What does it compute?",
    (
        ACTIVITY,
        graph(
            "Memory",
            memory.USED.meaning,
            *spread(now(memory.USED)),
            Query(now(memory.TOTAL).smallest(), "all of it", limit=True),
        ),
        graph(
            "Multiprocessors and tensor cores",
            "Share of the multiprocessors with work on them (least, mean, most), of the warps that "
            "they could hold, of time in which tensor cores worked, and of their peak at the "
            "highest clock that this gave: an approximate upper bound of MFU.",
            *spread(now(activity.SM_ACTIVE), f"{GPU_NAME} SM active"),
            Query(now(activity.SM_OCCUPANCY).mean(), "mean occupancy"),
            Query(now(activity.TENSOR_ACTIVE).mean(), "mean tensor"),
            Query(rate(activity.TENSOR_SECONDS).mean(), "mean tensor throughput"),
            whole=True,
            width=16,
            height=7,
            empty=GPM,
        ),
        graph(
            "Video engines",
            "Share of time in which each engine worked, on the GPU where it worked most. They work "
            "beside the multiprocessors. No line for engines that a GPU does not have.",
            Query(now(gpu.DECODER).largest(), "decoder (NVDEC)"),
            Query(now(gpu.ENCODER).largest(), "encoder (NVENC)"),
            width=8,
            height=7,
        ),
        graph(
            "Length of a step",
            f"{pulses.STEP.meaning} And in the first hour of the job.",
            Query(now(pulses.STEP), GPU_NAME),
            Query(now(job_watch.REFERENCE), f"{GPU_NAME} first hour", limit=True),
            width=24,
            height=6,
            empty=RHYTHM,
        ),
    ),
)

BRAKES = Row(
    "What holds it down?",
    (
        graph(
            "Power",
            f"{power.POWER.meaning} And the smallest limit now enforced.",
            *spread(now(power.POWER)),
            Query(now(power.POWER_LIMIT).smallest(), "limit", limit=True),
            height=7,
        ),
        graph(
            "SM clock",
            "Clock of the multiprocessors, and the highest that they can have; it falls when the "
            "GPU idles.",
            *spread(now(clocks.CLOCK, clock="sm")),
            Query(now(clocks.CLOCK_LIMIT, clock="sm").smallest(), "highest", limit=True),
            height=7,
        ),
        graph(
            "Throttled",
            "Share of time for which something held the clocks down, by reason: of each, the GPU "
            "that it held most. Reasons overlap, and power_cap is normal while the clocks stay "
            "high.",
            Query(rate(clocks.THROTTLE).largest(("reason",)), "{{reason}}"),
            whole=True,
            height=7,
        ),
        graph(
            "Temperature",
            "Temperature of the core, where the GPU slows down, and of the hottest memory. No line "
            "for that on GPUs before Volta.",
            *spread(now(temperature.TEMPERATURE)),
            Query(now(temperature.MEMORY_TEMPERATURE).largest(), "memory, most"),
            Query(now(temperature.LIMIT, limit="slowdown").smallest(), "slowdown", limit=True),
            height=7,
        ),
    ),
)


def _errors_within(window: str) -> Value:
    """Errors by GPU and kind. A GPU that MIG divides shows only the ECC errors of its whole life:
    the larger growth of both lifetimes counts."""
    xids = grown(xid.XID_ERRORS, (*GPU, "xid"), window).labelled("error", "XID $1", "xid")
    ecc_errors = f"increase({select(ecc.ERRORS, severity='uncorrected')}[{window}])"
    lost = Value(f"max without (lifetime) ({ecc_errors})", xids.unit)
    found = either(xids, lost.labelled("error", "uncorrected ECC", "gpu"))
    return found.total(OF_ERROR).where("> 0")


OF_ERROR = (*GPU, "error")
ERRORS_OF_GPUS = table(
    "Errors by GPU",
    "XID errors by code, and uncorrected memory errors, in this time range; when they came first "
    "and last.",
    (
        Column("Errors", _errors_within(RANGE), ANY),
        Column("First", _errors_within(RATE).when("min", OF_ERROR)),
        Column("Last", _errors_within(RATE).when("max", OF_ERROR)),
    ),
    overrides=[wide("First", 140), wide("Last", 140)],
    height=7,
    empty="while no GPU has errors",
)


HARM = Row(
    "Is it broken?",
    (
        ERRORS_OF_GPUS,
        table(
            "Memory, and what the driver asks for",
            "Failed: rows that could not be remapped, the GPU qualifies for replacement. Pending: "
            "rows that wait for a reset. Remapped: after uncorrected errors. Retired: on GPUs "
            "before Ampere. The driver asks for nothing at 0 (drivers from 570 on).",
            (
                Column("Failed rows", now(ecc.REMAP_FAILURE).largest(GPU), ANY),
                Column("Pending", now(ecc.REMAP_PENDING).largest(GPU), ANY),
                Column("Remapped", now(ecc.REMAPPED_ROWS, severity="uncorrected").largest(GPU)),
                Column("Retired pages", now(ecc.RETIRED_PAGES).total(GPU)),
                Column("Driver asks for", now(gpu.RECOVERY_ACTION).largest(GPU), ANY),
            ),
            height=7,
        ),
    ),
)

WHO = Row(
    "Who is on it, and which GPU is it?",
    (
        table(
            "Jobs",
            workload.JOB_INFO.meaning,
            (Column("GPUs", now(workload.JOB_INFO).counted(JOB)),),
            hidden=("Value",),
            overrides=[wide("instance", 80), wide("gpu", 45)],
            empty="unless job.info in the agent's configuration is on",
        ),
        graph(
            "Memory of each process",
            process.PROCESS_MEMORY.meaning,
            Query(now(process.PROCESS_MEMORY), GPU_NAME + " {{name}} ({{pid}})"),
            empty="unless process.series in the agent's configuration is above 0",
        ),
        table(
            "Identity",
            gpu.INFO.meaning,
            (Column("GPUs", now(gpu.INFO).counted((*GPU, *gpu.INFO.labels[1:]))),),
            hidden=("Value", "architecture"),
            overrides=[wide("uuid", 350), wide("model", 240)],
            width=24,
            height=6,
        ),
    ),
)


def gpu_board(runbook: str = "") -> Board:
    about = "Where each GPU's time goes, what it computes, what slows it down, what is broken."
    fires = firing_alerts(runbook)
    rows = TIME, fires, WORK, BRAKES, HARM, WHO
    return board("dgx-gpu", about, *rows)
