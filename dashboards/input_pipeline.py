"""The input pipeline: what starves the GPUs, beside everything that could, on one time axis."""

from agent.limits.paths import LIMIT
from agent.model import State
from agent.sources import activity, disk, host, infiniband, network
from dashboards.board import FULL, LOST, Board, Row
from dashboards.kinds import bars, graph, stat
from dashboards.queries import (
    GPU,
    Query,
    fullness,
    limit,
    now,
    rate,
    saturated,
    spread,
    time_in,
)
from dashboards.scope import board, time_panels

NAME = "{{instance}} GPU {{gpu}}"
DISK = "{{instance}} {{device}}"

STARVED = Row(
    "What do the GPUs wait for?",
    (
        *time_panels("Time lost by cause", (12, 8), state=State.STARVED.value),
        stat(
            "Starved in total",
            "Share of the observed GPU time in this range for which GPUs waited.",
            time_in(State.STARVED),
            LOST,
            height=10,
        ),
        graph(
            "Activity",
            activity.ACTIVITY.meaning,
            *spread(now(activity.ACTIVITY), NAME),
            whole=True,
            width=24,
            height=6,
        ),
    ),
)

STORAGE = Row(
    "Is it the storage?",
    (
        graph(
            "Reads",
            "Bytes read from disks and arrays, and the limit of the fastest of them. No line if "
            "no spec sheet or configuration has the figure.",
            Query(rate(disk.READ_BYTES, ("instance", "device")), DISK),
            Query(now(LIMIT, path="disk", direction="read").largest(), "limit", limit=True),
        ),
        graph(
            "Disks busy",
            "Share of time with at least one request in flight.",
            Query(rate(disk.BUSY, ("instance", "device")), DISK),
        ),
        graph(
            "Waiting for I/O",
            "Share of time for which some task, or all of them (full), waited for I/O.",
            Query(rate(host.PRESSURE, resource="io"), "{{instance}} {{kind}}"),
            whole=True,
            width=24,
            height=6,
        ),
    ),
)

NETWORK = Row(
    "Is it the network?",
    (
        graph(
            "NICs received",
            "Traffic that each NIC received, and the smallest limit among them.",
            Query(rate(network.RECEIVED, ("instance", "device")).bits(), DISK),
            limit(path="network", direction="receive"),
            width=8,
        ),
        graph(
            "InfiniBand received",
            "Traffic that each port received, and the smallest limit among them.",
            Query(rate(infiniband.RECEIVED).bits(), "{{instance}} {{device}}:{{port}}"),
            limit(path="infiniband", direction="receive"),
            width=8,
            empty="on systems without InfiniBand",
        ),
        bars(
            "Inbound path saturation",
            "Share of this time range for which the fullest disk read, network or PCIe path was at "
            "or above its threshold of saturation.",
            Query(
                saturated(
                    ("path", "direction"), path="~disk|network|pcie", direction="~read|receive"
                ).descending(),
                "{{path}} {{direction}}",
            ),
            FULL,
            width=8,
        ),
    ),
)

CPU = Row(
    "Is it the CPU, or the way to the GPU?",
    (
        graph(
            "CPU busy",
            host.BUSY.meaning,
            Query(now(host.BUSY), "{{instance}}"),
            whole=True,
            width=8,
        ),
        graph(
            "Waiting for a core or for memory",
            "Share of time for which some task waited for a core or for memory.",
            Query(
                rate(host.PRESSURE, resource="~cpu|memory", kind="some"),
                "{{instance}} {{resource}}",
            ),
            width=8,
        ),
        graph(
            "PCIe to the GPUs",
            "What each GPU received over PCIe, over the limit of its slot.",
            Query(fullness(GPU, path="pcie", direction="receive"), NAME),
            whole=True,
            width=8,
        ),
    ),
)


def input_pipeline_board() -> Board:
    about = "What starves the GPUs, beside disks, network, PCIe and CPU on one time axis."
    return board("dgx-input-pipeline", about, STARVED, STORAGE, NETWORK, CPU)
