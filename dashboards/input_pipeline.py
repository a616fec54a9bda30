"""The input pipeline: the cause of starved GPUs, beside all possible causes, on a common time
axis."""

from agent.limits.paths import LIMIT
from agent.model import State
from agent.sources import disk, host, infiniband, network
from dashboards.board import FULL, Board, Row
from dashboards.kinds import bars, graph
from dashboards.queries import GPU, GPU_NAME, Query, fullness, limit, now, rate, saturated
from dashboards.scope import ACTIVITY, board, time_panels

DISK = "{{instance}} {{device}}"

STARVED = Row(
    "What do the GPUs wait for?",
    time_panels("Time lost by cause", (12, 12), state=State.STARVED.value),
)

DISKS = graph(
    "Disks",
    "Bytes that disks and arrays read and write, and the limit of the fastest. No line if no spec "
    "sheet or configuration has the figure.",
    Query(rate(disk.READ_BYTES, ("instance", "device")).most(5), f"{DISK} read"),
    Query(rate(disk.WRITTEN_BYTES, ("instance", "device")).most(5), f"{DISK} written"),
    Query(now(LIMIT, path="disk", direction="~read|").largest(), "read limit", limit=True),
)
DISKS_BUSY = graph(
    "Disks busy",
    "Share of time with at least one request in flight; NVMe disks serve many at once.",
    Query(rate(disk.BUSY, ("instance", "device")), DISK),
)
NICS = graph(
    "NICs",
    "Traffic that each NIC received and sent, and the smallest limit among them.",
    Query(rate(network.RECEIVED, ("instance", "device")).bits(), f"{DISK} received"),
    Query(rate(network.TRANSMITTED, ("instance", "device")).bits(), f"{DISK} sent"),
    limit(path="network", direction="receive"),
)
CPU_BUSY = graph("CPU busy", host.BUSY.meaning, Query(now(host.BUSY), "{{instance}}"), whole=True)
PRESSURE = graph(
    "Pressure",
    "Share of time for which some task, or all of them (full), waited for the resource.",
    Query(rate(host.PRESSURE), "{{instance}} {{resource}} {{kind}}"),
)

SUSPECTS = Row(
    "Is it the storage, the network, the CPU, or the way to the GPU?",
    (
        ACTIVITY,
        DISKS,
        DISKS_BUSY,
        NICS,
        graph(
            "InfiniBand received",
            "Traffic that each port received, and the smallest limit among them.",
            Query(rate(infiniband.RECEIVED).bits(), "{{instance}} {{device}}:{{port}}"),
            limit(path="infiniband", direction="receive"),
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
            empty="while no path is at its limit",
        ),
        CPU_BUSY,
        PRESSURE,
        graph(
            "PCIe to the GPUs",
            "What each GPU received over PCIe, over the limit of its slot.",
            Query(fullness(GPU, path="pcie", direction="receive"), GPU_NAME),
            whole=True,
        ),
    ),
)


def input_pipeline_board() -> Board:
    about = "What starves the GPUs, beside disks, network, PCIe and CPU on one time axis."
    return board("dgx-input-pipeline", about, STARVED, SUSPECTS)
