"""The host of a node: its disks, network ports, processors and their pressure on one time axis."""

from agent.limits.paths import LIMIT
from agent.sources import disk, host, network
from dashboards.board import Row
from dashboards.kinds import graph
from dashboards.queries import Query, limit, now, rate

DISK = "{{instance}} {{device}}"

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

HOST = Row(
    "Do the host, its disks and its network keep up?",
    (DISKS, DISKS_BUSY, NICS, CPU_BUSY, PRESSURE),
    collapsed=True,
)
