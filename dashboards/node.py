"""A node: utilization, saturation and errors of everything in it, at a glance."""

from agent.diagnosis import job_watch, pulses
from agent.diagnosis.accounting import STATE_SECONDS
from agent.faults.records import SECONDS_RECORD
from agent.model import LOST_STATES, WHAT_LOST, State
from agent.sources import activity, disk, memory, nvlink, power, system, temperature
from dashboards.board import ANY, FULL, LOST, MARGIN, NEUTRAL, PART, SOME, Board, Row
from dashboards.gpu import ERRORS_OF_GPUS
from dashboards.host import HOST
from dashboards.kinds import Column, bars, graph, stat, table, wide
from dashboards.links import LINKS
from dashboards.queries import (
    GPU,
    GPU_NAME,
    NODE,
    Query,
    Value,
    alerts,
    fullness,
    grown,
    now,
    rate,
    saturated,
    summed,
    time_in,
)
from dashboards.scope import (
    ABSENT,
    ACTIVITY,
    RHYTHM,
    TO_GPU,
    WHY,
    board,
    firing_alerts,
    goodput,
    link_to,
    time_panels,
)

ERRORS_ROW = Row(
    "Is anything broken or missing?",
    (
        stat(
            "Critical alerts",
            "Critical alerts that fire for the nodes chosen.",
            alerts((), "critical").or_zero(),
            ANY,
            width=4,
        ),
        stat(
            "Other alerts",
            "Warnings and pieces of information that fire for the nodes chosen.",
            alerts((), "warning|info").or_zero(),
            SOME,
            width=4,
        ),
        stat(
            "GPU time starved",
            "Share of the GPU time observed in this time range for which GPUs waited for data, "
            "for the host or for a peer.",
            time_in(State.STARVED),
            LOST,
            width=5,
        ),
        stat(
            "GPUs missing",
            "GPUs that the node should have, less those that answer.",
            now(system.GPUS_EXPECTED).less(now(system.GPUS)).total(),
            ANY,
            width=5,
        ),
        stat(
            "NVLinks down",
            "NVLinks that the GPUs should have, less those that are up.",
            now(nvlink.LINKS_EXPECTED).less(now(nvlink.LINKS)).total(),
            ANY,
            width=6,
        ),
        ERRORS_OF_GPUS,
        table(
            "Not measured, and why",
            "Values that are absent on this node, by reason, and of how many metrics. A reason "
            "leads to the board that names them.",
            (
                Column("Metrics", ABSENT.counted(("instance", "reason"))),
                Column("Values", ABSENT.total(("instance", "reason"))),
            ),
            links={"reason": link_to("dgx-agent", "instance")},
            overrides=[WHY, wide("reason", 330)],
            height=7,
            empty="while every value is read",
        ),
    ),
)

GOODPUT = goodput(
    NODE,
    lambda which: grown(STATE_SECONDS, NODE, state=which),
    grown(activity.TENSOR_SECONDS, NODE).over(grown(STATE_SECONDS, NODE, state=State.BUSY)),
)

STATES_ROW = Row(
    "Where does the time of its GPUs go?",
    (
        *time_panels("Time by state and cause", (7, 7)),
        table(
            "Each GPU",
            "Shares of the time observed in this time range. A GPU leads to its board.",
            tuple(
                Column(
                    state.value.capitalize(),
                    time_in(state, GPU),
                    LOST if state in LOST_STATES else NEUTRAL,
                )
                for state in reversed(State)
            ),
            links={"gpu": TO_GPU},
            overrides=[wide("gpu", 45), wide("Communicating", 122)],
            as_asked=True,
            width=10,
            height=10,
        ),
        GOODPUT,
    ),
)

WORK = Row(
    "How hard do they work?",
    (
        ACTIVITY,
        bars(
            "Memory in use",
            "Device memory in use, as a share of all that the GPU has.",
            Query(now(memory.USED).over(now(memory.TOTAL)), GPU_NAME),
            PART,
        ),
        bars(
            "Thermal headroom (below slowdown)",
            temperature.MARGIN.meaning,
            Query(now(temperature.MARGIN), GPU_NAME),
            MARGIN,
            most=60,
        ),
        graph(
            "Power",
            "Power of all GPUs chosen, and the sum of their limits.",
            Query(rate(power.ENERGY).total(), "power"),
            Query(now(power.POWER_LIMIT).total(), "limit", limit=True),
        ),
    ),
)

OF_JOB = ("instance", "job_id", "user", "account")
JOB_HOURS, JOB_LOST = (
    Value(f"{summed(SECONDS_RECORD, OF_JOB, state=state, job_id='~.+').expr} / 3600", "short")
    for state in ("~.+", f"~{WHAT_LOST}")
)

JOBS = Row(
    "How do the jobs get on?",
    (
        graph(
            "Steps per second of the jobs",
            "Iterations of the job on each GPU; the GPUs of one job have the same. No line if no "
            "steps are detected.",
            Query(rate(pulses.STEPS).where("> 0"), GPU_NAME),
            height=7,
            empty=RHYTHM,
            width=7,
        ),
        table(
            "Jobs, those that lose most first",
            "GPU-hours of each job on this node in this time range, and those lost: starved, "
            "throttled, held or hung. Summed up every five minutes.",
            (Column("Lost GPU-hours", JOB_LOST), Column("GPU-hours", JOB_HOURS)),
            overrides=[wide("instance", 75), wide("Lost GPU-hours", 140)],
            width=10,
            height=7,
            empty="unless [job] info is on and a job has a GPU",
        ),
        table(
            "What hung jobs wait for",
            job_watch.HUNG.meaning,
            (Column("Hung", now(job_watch.HUNG)),),
            width=7,
            height=7,
            empty="while no job hangs and waits for a process that is known",
        ),
    ),
)

PATHS = Row(
    "Which data path is nearly full?",
    (
        graph(
            "Fullest of each kind of path",
            "Traffic over the limit, a mean over the agent's last reading; 1 is the limit of the "
            "path. NVLink is measured on the wire. For disks also the share of time for which the "
            "busiest was busy, because most have no known limit.",
            Query(rate(disk.BUSY).largest(), "disk busy"),
            Query(fullness(("path", "direction")), "{{path}} {{direction}}"),
            whole=True,
            peaks=True,
        ),
        bars(
            "Time at the limit, by path",
            "Share of this time range for which the fullest of each kind was at or above its "
            "threshold of saturation.",
            Query(saturated(("path", "direction")).descending(), "{{path}} {{direction}}"),
            FULL,
            empty="while no path is at its limit",
        ),
    ),
)


def node_board(runbook: str = "") -> Board:
    about = "Utilization, saturation and errors of the GPUs, links, disks and network of a node."
    fires = firing_alerts(runbook)
    return board("dgx-node", about, ERRORS_ROW, fires, STATES_ROW, WORK, JOBS, PATHS, *LINKS, HOST)
