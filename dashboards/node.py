"""One node: utilisation, saturation and errors of everything in it, at a glance."""

from agent.diagnosis.accounting import STATE_SECONDS
from agent.limits.paths import LIMIT
from agent.model import State
from agent.sources import (
    activity,
    chassis,
    cpu,
    disk,
    host_memory,
    memory,
    network,
    nvlink,
    power,
    pressure,
    system,
    temperature,
    xid,
)
from dashboards.board import Board, Row
from dashboards.colours import ANY, FULL, LOST, MARGIN, NEUTRAL, PART, SOME
from dashboards.firing import firing_alerts
from dashboards.goodput import goodput_row
from dashboards.gpu_health import ecc_errors
from dashboards.jobs import JOBS
from dashboards.kinds import bars, graph, stat
from dashboards.queries import (
    Labels,
    Query,
    a_second,
    bits,
    descending,
    grown,
    largest,
    latency,
    less,
    most,
    now,
    or_zero,
    over,
    rate,
    smallest,
    total,
)
from dashboards.scope import TO_GPU, board
from dashboards.shares import (
    GPU,
    NODE,
    alerts,
    fullness,
    limit,
    saturated,
    spread,
    time_in,
)
from dashboards.states import time_graph
from dashboards.tables import Column, table, wide

DISK: Labels = ("instance", "device")
DISK_NAME = "{{instance}} {{device}}"
GPU_NAME = "{{instance}} GPU {{gpu}}"
NO_SENSORS = "on machines whose kernel shows no sensors of the chassis"

ERRORS = Row(
    "Is anything broken or missing?",
    (
        stat(
            "Critical alerts",
            "Critical alerts that fire for the nodes chosen.",
            or_zero(alerts((), "critical")),
            ANY,
            width=3,
        ),
        stat(
            "Other alerts",
            "Warnings and pieces of information that fire for the nodes chosen.",
            or_zero(alerts((), "warning|info")),
            SOME,
            width=3,
        ),
        stat(
            "GPU time starved",
            "Share of the GPU time observed in this time range for which GPUs waited for data, "
            "for the host or for a peer.",
            time_in(State.STARVED),
            LOST,
            width=3,
        ),
        stat(
            "GPUs missing",
            "GPUs that the node should have, less those that answer.",
            total(less(now(system.GPUS_EXPECTED), now(system.GPUS))),
            ANY,
            width=3,
        ),
        stat(
            "NVLinks down",
            "NVLinks that the GPUs should have, less those that are up.",
            total(less(now(nvlink.LINKS_EXPECTED), now(nvlink.LINKS))),
            ANY,
            width=3,
        ),
        stat(
            "XID errors",
            "XID errors that the driver reported in this time range.",
            total(grown(xid.ERRORS)),
            ANY,
            width=3,
        ),
        stat(
            "Uncorrected ECC errors",
            "Uncorrected memory errors of the GPUs in this time range.",
            ecc_errors(severity="uncorrected"),
            ANY,
            width=6,
        ),
    ),
)

STATES = Row(
    "Where does the time of its GPUs go?",
    (
        time_graph("Time by state and cause", "the time of the GPUs chosen", height=10),
        table(
            "Each GPU",
            "Shares of the time observed in this time range. A GPU leads to its board.",
            tuple(
                Column(state.value.capitalize(), time_in(state, GPU), steps)
                for state, steps in (
                    (State.BUSY, NEUTRAL),
                    (State.COMMUNICATING, NEUTRAL),
                    (State.STARVED, LOST),
                    (State.THROTTLED, LOST),
                    (State.HELD, LOST),
                    (State.HUNG, LOST),
                    (State.IDLE, NEUTRAL),
                )
            ),
            links={"gpu": TO_GPU},
            overrides=[wide("instance", 150), wide("gpu", 50), wide("Communicating", 122)],
            as_asked=True,
            height=10,
        ),
    ),
)

GOODPUT = goodput_row(
    NODE,
    lambda which: grown(STATE_SECONDS, NODE, state=which),
    over(grown(activity.TENSOR_SECONDS, NODE), grown(STATE_SECONDS, NODE, state=State.BUSY)),
)

WORK = Row(
    "How hard do they work?",
    (
        graph(
            "Activity",
            activity.ACTIVITY.meaning,
            *spread(now(activity.ACTIVITY), GPU_NAME),
            whole=True,
            width=8,
        ),
        bars(
            "Memory in use",
            "Device memory in use, as a share of all that the GPU has.",
            Query(over(now(memory.USED), now(memory.TOTAL)), GPU_NAME),
            PART,
            width=8,
        ),
        bars(
            "Thermal headroom (below slowdown)",
            temperature.MARGIN.meaning,
            Query(now(temperature.MARGIN), GPU_NAME),
            MARGIN,
            ends={"min": 0, "max": 60},
            width=8,
        ),
        graph(
            "Power",
            "Power of all GPUs chosen, and the sum of their limits.",
            Query(total(rate(power.ENERGY)), "power"),
            Query(total(now(power.POWER_LIMIT)), "limit", limit=True),
            width=24,
            height=6,
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
            Query(largest(rate(disk.BUSY)), "disk busy"),
            Query(fullness(("path", "direction")), "{{path}} {{direction}}"),
            whole=True,
        ),
        bars(
            "Time at the limit, by path",
            "Share of this time range for which the fullest of each kind was at or above its "
            "threshold of saturation.",
            Query(descending(saturated(("path", "direction"))), "{{path}} {{direction}}"),
            FULL,
        ),
        graph(
            "Disks",
            "Bytes read and written by the five busiest disks and arrays, and the limit of the "
            "fastest. No line if no spec sheet or configuration has the figure.",
            Query(most(rate(disk.READ_BYTES, ("device",)), 5), "{{device}} read"),
            Query(most(rate(disk.WRITTEN_BYTES, ("device",)), 5), "{{device}} written"),
            Query(largest(now(LIMIT, path="disk", direction="read")), "read limit", limit=True),
            width=24,
            height=7,
        ),
        graph(
            "Network",
            "Traffic of the NICs, and the smallest limit among them.",
            Query(bits(rate(network.RECEIVED, ("device",))), "{{device}} received"),
            Query(bits(rate(network.TRANSMITTED, ("device",))), "{{device}} sent"),
            limit(path="network", direction="receive"),
            width=24,
            height=6,
        ),
    ),
)

HOST = Row(
    "Does the host keep up?",
    (
        graph("CPU", cpu.BUSY.meaning, Query(now(cpu.BUSY), "{{instance}}"), whole=True, width=8),
        graph(
            "Memory of the host",
            "Memory that programs could still get without swapping, and all that the host has.",
            Query(now(host_memory.AVAILABLE), "{{instance}} available"),
            Query(smallest(now(host_memory.TOTAL)), "all of it", limit=True),
            width=8,
        ),
        graph(
            "Pressure",
            "Share of time for which some task, or all of them (full), waited for the resource.",
            Query(rate(pressure.PRESSURE), "{{instance}} {{resource}} {{kind}}"),
            width=8,
        ),
        graph(
            "Disks busy",
            "Share of time with at least one request in flight; NVMe disks serve many at once.",
            Query(rate(disk.BUSY, DISK), DISK_NAME),
            width=8,
        ),
        graph(
            "Disk requests",
            "Requests that each disk or array finished a second (IOPS): the ten busiest.",
            Query(most(a_second(disk.READS, DISK), 10), f"{DISK_NAME} read"),
            Query(most(a_second(disk.WRITES, DISK), 10), f"{DISK_NAME} written"),
            width=8,
        ),
        graph(
            "Disk latency",
            "Mean time that a request took, from when it was queued: the ten slowest.",
            Query(most(latency(disk.READ_SECONDS, disk.READS, DISK), 10), f"{DISK_NAME} read"),
            Query(most(latency(disk.WRITE_SECONDS, disk.WRITES, DISK), 10), f"{DISK_NAME} written"),
            empty="for arrays on kernels before 5.10, which count no time for them",
            width=8,
        ),
        stat(
            "Array members missing",
            "Members that the md arrays should have, less those that work.",
            total(now(disk.MEMBERS, state="missing")),
            ANY,
        ),
        graph(
            "Power of the whole box",
            chassis.POWER.meaning,
            Query(now(chassis.POWER), "{{instance}} {{sensor}}"),
            empty=NO_SENSORS,
            width=8,
        ),
        graph(
            "Air through the box",
            chassis.TEMPERATURE.meaning,
            Query(now(chassis.TEMPERATURE), "{{instance}} {{sensor}}"),
            empty=NO_SENSORS,
            width=8,
        ),
    ),
    collapsed=True,
)


def node_board(runbook: str = "") -> Board:
    """The alerts lead to the runbook, where it has an address."""
    about = "Utilisation, saturation and errors of the GPUs, links, disks and network of a node."
    fires = firing_alerts(runbook, height=8)
    return board("dgx-node", about, ERRORS, fires, STATES, GOODPUT, WORK, JOBS, PATHS, HOST)
