"""The links: NVLink, PCIe and InfiniBand against their limits, their errors, and who is joined."""

from agent.limits.paths import LIMIT_INFO, RATIO
from agent.sources import fabric, infiniband, nvlink, pcie
from dashboards.board import Board, Json, Row
from dashboards.colours import ANY, BAD, FULL, GOOD, SHORT, SOME, Step
from dashboards.firing import firing_alerts
from dashboards.kinds import bars, graph, stat, words
from dashboards.queries import (
    RATE,
    Query,
    bits,
    counted,
    grown,
    largest,
    less,
    most,
    now,
    or_zero,
    over,
    rate,
    smallest,
    total,
    where,
)
from dashboards.scope import board
from dashboards.shares import DEVICE, GPU, WHOLE_GPU, fullness, limit, of_spec, saturated, spread
from dashboards.tables import Column, table, wide
from dashboards.topology import TOPOLOGY

NAME = "{{instance}} GPU {{gpu}}"
PORT = "{{instance}} {{device}}:{{port}}"
NO_INFINIBAND = "on systems without InfiniBand"
NO_SHARE = "No line for the limit if all links lead to one NVSwitch: only their sum has one."

BOTH_WAYS = ("instance", "path", "device")
EACH_LINK = "2m"
"""Counters of single links are read each 60 s: a rate over less is naught, or twice too much."""

NVLINK = Row(
    "Is NVLink full?",
    (
        graph(
            "NVLink sent",
            "Payload sent over all NVLinks of each GPU, and their limit, protocol included. There "
            "is no line if a driver refuses the counters (V100 from 580 on).",
            *spread(rate(nvlink.TRANSMITTED), NAME),
            limit(path="nvlink", device=WHOLE_GPU, direction="transmit"),
        ),
        graph(
            "NVLink received",
            "Payload received over all NVLinks of each GPU, and their limit, protocol included. "
            "There is no line if a driver refuses the counters (V100 from 580 on).",
            *spread(rate(nvlink.RECEIVED), NAME),
            limit(path="nvlink", device=WHOLE_GPU, direction="receive"),
        ),
        graph(
            "NVLink on the wire",
            "Traffic on the wire (payload plus protocol; payload alone on P100) over the limit, "
            "in the fuller direction of each GPU.",
            *spread(fullness(GPU, path="nvlink", device=WHOLE_GPU), NAME),
            whole=True,
        ),
        bars(
            "NVLink, time at the limit",
            "Share of this time range for which the NVLinks of the GPU were at or above the "
            "threshold of saturation.",
            Query(saturated(GPU, path="nvlink", device=WHOLE_GPU), NAME),
            FULL,
        ),
    ),
)

OTHERS = Row(
    "Is PCIe or InfiniBand full?",
    (
        graph(
            "PCIe from the host",
            "Bytes that each GPU received, protocol included, and the limit of its slot.",
            *spread(rate(pcie.RECEIVED), NAME),
            limit(path="pcie", direction="receive"),
        ),
        graph(
            "PCIe to the host",
            "Bytes that each GPU sent, protocol included, and the limit of its slot.",
            *spread(rate(pcie.TRANSMITTED), NAME),
            limit(path="pcie", direction="transmit"),
        ),
        graph(
            "InfiniBand",
            "Traffic that each port received and sent, and the smallest limit among them.",
            Query(bits(rate(infiniband.RECEIVED)), f"{PORT} received"),
            Query(bits(rate(infiniband.TRANSMITTED)), f"{PORT} sent"),
            limit(path="infiniband"),
            width=24,
            empty=NO_INFINIBAND,
        ),
        bars(
            "PCIe, time at the limit",
            "Share of this time range for which the slot was at or above its threshold, the fuller "
            "direction.",
            Query(saturated(GPU, path="pcie"), NAME),
            FULL,
        ),
        bars(
            "InfiniBand, time at the limit",
            "Share of this time range for which the port was at or above its threshold, the fuller "
            "direction.",
            Query(saturated(("instance", "device"), path="infiniband"), "{{instance}} {{device}}"),
            FULL,
            empty=NO_INFINIBAND,
        ),
    ),
)

FABRIC_STEPS = (Step(None, BAD), Step(3, GOOD))
FABRIC: Json = {
    "mappings": [
        {
            "type": "value",
            "options": words(
                (1, "not started", BAD), (2, "in progress", BAD), (3, "completed", GOOD)
            ),
        }
    ]
}

HEALTH = Row(
    "Do all links work?",
    (
        stat(
            "NVLinks down",
            "NVLinks that the GPUs should have, less those that are up.",
            total(less(now(nvlink.LINKS_EXPECTED), now(nvlink.LINKS))),
            ANY,
        ),
        stat(
            "NVLink errors",
            "NVLink errors in this time range.",
            total(grown(nvlink.ERRORS)),
            SOME,
        ),
        stat(
            "Degraded paths",
            "Links, slots and ports that can carry less than their spec sheet says.",
            or_zero(counted(where(smallest(of_spec(), BOTH_WAYS), "< 1"))),
            ANY,
        ),
        stat(
            "InfiniBand ports down",
            "Ports that are not active.",
            or_zero(counted(where(now(infiniband.LINK_UP), "== 0"))),
            ANY,
        ),
        stat(
            "InfiniBand errors",
            "Errors of the ports in this time range.",
            or_zero(total(grown(infiniband.ERRORS))),
            SOME,
            width=8,
        ),
        table(
            "NVLinks that are down",
            "Each link that is down now, by GPU and number.",
            (Column("Up", where(largest(now(nvlink.LINK_UP), (*GPU, "link")), "== 0"), SHORT),),
            width=8,
            empty="while all NVLinks are up",
        ),
        table(
            "Degraded paths, worst first",
            "Present capacity of each path over the figure of its spec sheet; below 1 a link is "
            "down, a "
            "slot is narrow, or a port runs at a lower rate.",
            (Column("Of spec", of_spec(), SHORT),),
            ascending=True,
            width=8,
        ),
        table(
            "NVLinks with errors",
            "NVLink errors of each GPU in this time range: each is traffic that was sent again.",
            (Column("Errors", grown(nvlink.ERRORS, GPU), SOME),),
            width=8,
        ),
        graph(
            "NVLink errors by kind",
            f"{nvlink.ERRORS.meaning} Of all GPUs chosen, by kind.",
            Query(grown(nvlink.ERRORS, ("kind",), RATE), "{{kind}}"),
            width=8,
        ),
        table(
            "PCIe slots",
            "Lanes and generation over the most that GPU and slot can have together, and packets "
            "sent again in this time range. GPUs before Hopper lower the generation when they "
            "idle, so it has no colour.",
            (
                Column("Lanes", over(now(pcie.WIDTH), now(pcie.WIDTH_LIMIT)), SHORT),
                Column("Generation", over(now(pcie.GENERATION), now(pcie.GENERATION_LIMIT))),
                Column("Sent again", grown(pcie.REPLAYS)),
            ),
            hidden=("uuid",),
            ascending=True,
            width=8,
        ),
        table(
            "InfiniBand ports",
            "Whether the port is active, and its errors in this time range.",
            (
                Column(
                    "Up", smallest(now(infiniband.LINK_UP), ("instance", "device", "port")), SHORT
                ),
                Column("Errors", grown(infiniband.ERRORS, ("instance", "device", "port")), ANY),
            ),
            ascending=True,
            empty=NO_INFINIBAND,
            width=8,
        ),
    ),
)

SINGLE = Row(
    "What does each single link carry?",
    (
        graph(
            "Each NVLink, sent",
            f"{nvlink.LINK_TRANSMITTED.meaning} {NO_SHARE}",
            Query(rate(nvlink.LINK_TRANSMITTED), NAME + " link {{link}}"),
            limit(path="nvlink", device="~gpu[0-9]+:[0-9]+", direction="transmit"),
            named=False,
            every=EACH_LINK,
        ),
        graph(
            "Each NVLink, received",
            f"{nvlink.LINK_RECEIVED.meaning} {NO_SHARE}",
            Query(rate(nvlink.LINK_RECEIVED), NAME + " link {{link}}"),
            limit(path="nvlink", device="~gpu[0-9]+:[0-9]+", direction="receive"),
            named=False,
            every=EACH_LINK,
        ),
        table(
            "Fullest paths now",
            "The 30 fullest of all paths, traffic over limit.",
            (Column("Of limit", most(largest(now(RATIO), DEVICE), 30)),),
        ),
        graph(
            "InfiniBand congestion",
            infiniband.WAIT.meaning,
            Query(grown(infiniband.WAIT, None, RATE), PORT),
            empty=NO_INFINIBAND,
        ),
        stat(
            "NVSwitch fabric",
            fabric.STATE.meaning,
            largest(now(fabric.STATE), GPU),
            FABRIC_STEPS,
            legend=NAME,
            fields=FABRIC,
            width=12,
            height=8,
            empty="on systems without NVSwitch, or whose driver does not report",
        ),
    ),
    collapsed=True,
)

ORIGINS = Row(
    "Where do the limits come from?",
    (
        table(
            "Limits and their sources",
            LIMIT_INFO.meaning,
            (
                Column(
                    "Limits",
                    counted(now(LIMIT_INFO), ("instance", "path", "direction", "origin", "source")),
                ),
            ),
            overrides=[wide("source", 800)],
            width=24,
        ),
    ),
)


def links_board(runbook: str = "") -> Board:
    """The alerts lead to the runbook, where it has an address."""
    about = "Utilisation of NVLink, PCIe and InfiniBand, their errors, and connected devices."
    rows = HEALTH, firing_alerts(runbook), NVLINK, OTHERS, ORIGINS, TOPOLOGY, SINGLE
    return board("dgx-links", about, *rows)
