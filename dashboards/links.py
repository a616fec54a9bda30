"""The links: NVLink, PCIe and InfiniBand against their limits, and their errors."""

from agent.sources import infiniband, nvlink, pcie
from dashboards.board import ANY, FULL, SHORT, SOME, Row
from dashboards.kinds import Column, bars, graph, table, wide
from dashboards.queries import (
    DEVICE,
    GPU,
    RATE,
    WHOLE_GPU,
    Query,
    fullness,
    grown,
    limit,
    now,
    of_spec,
    rate,
    saturated,
    spread,
)

PORT_NAME = "{{instance}} {{device}}:{{port}}"
NO_INFINIBAND = "on systems without InfiniBand"

BOTH_WAYS = ("instance", "path", "device")
WHOLE = f"{WHOLE_GPU}|[^g].*"
"""Devices other than single NVLinks."""

NVLINK = Row(
    "Is NVLink full?",
    (
        *(
            graph(
                f"NVLink {word}",
                f"Payload {word} over all NVLinks of each GPU, and their limit, protocol included. "
                "There is no line if a driver refuses the counters (V100 from 580 on).",
                *spread(rate(metric)),
                limit(path="nvlink", device=WHOLE_GPU, direction=direction),
            )
            for word, direction, metric in (
                ("sent", "transmit", nvlink.TRANSMITTED),
                ("received", "receive", nvlink.RECEIVED),
            )
        ),
        graph(
            "NVLink on the wire",
            "Traffic on the wire (payload plus protocol; payload alone on P100) over the limit, "
            "in the fuller direction of each GPU.",
            *spread(fullness(GPU, path="nvlink", device=WHOLE_GPU)),
            whole=True,
            width=24,
            height=6,
        ),
    ),
    collapsed=True,
)

OTHERS = Row(
    "Is PCIe or InfiniBand full?",
    (
        *(
            graph(
                f"PCIe {way} the host",
                f"Bytes that each GPU {word}, protocol included, and the limit of its slot.",
                *spread(rate(metric)),
                limit(path="pcie", direction=direction),
            )
            for way, word, direction, metric in (
                ("from", "received", "receive", pcie.RECEIVED),
                ("to", "sent", "transmit", pcie.TRANSMITTED),
            )
        ),
        graph(
            "InfiniBand",
            "Traffic that each port received and sent, and the smallest limit among them.",
            Query(rate(infiniband.RECEIVED).bits(), f"{PORT_NAME} received"),
            Query(rate(infiniband.TRANSMITTED).bits(), f"{PORT_NAME} sent"),
            limit(path="infiniband"),
            empty=NO_INFINIBAND,
        ),
        graph(
            "InfiniBand congestion",
            infiniband.WAIT.meaning,
            Query(grown(infiniband.WAIT, None, RATE), PORT_NAME),
            empty=NO_INFINIBAND,
        ),
        bars(
            "Time at the limit",
            "Share of this time range for which NVLinks (all of a GPU), slot or port were at or "
            "above their threshold of saturation, the fuller direction: the ten fullest.",
            Query(
                saturated(BOTH_WAYS, path="~nvlink|pcie|infiniband", device=WHOLE).most(10),
                "{{instance}} {{path}} {{device}}",
            ),
            FULL,
            empty="while no path is at its limit",
        ),
    ),
    collapsed=True,
)

OF_LINK = (*GPU, "link")
DOWN_LINKS = now(nvlink.LINK_UP).largest(OF_LINK).where("== 0")
BELOW = of_spec().where("< 1")
WAS_UP = now(nvlink.LINK_UP).where("== 1").when("max", OF_LINK)
WAS_WHOLE = of_spec().where(">= 1").when("max", DEVICE)
NOT_SEEN = "before this range"

HEALTH_ROW = Row(
    "Do all links work?",
    (
        table(
            "NVLinks that are down",
            "Each link that is down now, by GPU and number, and when it was up for the last time.",
            (
                Column("Up", DOWN_LINKS, SHORT),
                Column(
                    "Was up", WAS_UP.among(DOWN_LINKS, OF_LINK).or_why(DOWN_LINKS), absent=NOT_SEEN
                ),
            ),
            overrides=[wide("Was up", 140)],
            width=8,
            empty="while all NVLinks are up",
        ),
        table(
            "Degraded paths, worst first",
            "Paths whose present capacity is below the figure of the spec sheet: a link is down, a "
            "slot is narrow, or a port runs at a lower rate; and when each was whole for the last "
            "time.",
            (
                Column("Of spec", BELOW, SHORT),
                Column("Was whole", WAS_WHOLE.among(BELOW, DEVICE).or_why(BELOW), absent=NOT_SEEN),
            ),
            overrides=[wide("instance", 75), wide("Of spec", 90), wide("Was whole", 130)],
            ascending=True,
            empty="while nothing is degraded",
            width=8,
        ),
        table(
            "NVLinks with errors",
            f"{nvlink.ERRORS.meaning} Of each link, by kind, in this time range.",
            (Column("Errors", grown(nvlink.ERRORS, (*OF_LINK, "kind")).where("> 0"), SOME),),
            empty="while no link has errors",
            width=8,
        ),
        table(
            "PCIe slots",
            "Lanes and generation over the most that GPU and slot can have together, and packets "
            "sent again in this time range. GPUs before Hopper lower the generation when they "
            "idle, so it has no colour.",
            (
                Column("Lanes", now(pcie.WIDTH).over(now(pcie.WIDTH_LIMIT)), SHORT),
                Column("Generation", now(pcie.GENERATION).over(now(pcie.GENERATION_LIMIT))),
                Column("Sent again", grown(pcie.REPLAYS)),
            ),
            hidden=("uuid",),
            ascending=True,
        ),
        table(
            "InfiniBand ports",
            "Whether the port is active, and its errors in this time range.",
            (
                Column(
                    "Up", now(infiniband.PORT_UP).smallest(("instance", "device", "port")), SHORT
                ),
                Column("Errors", grown(infiniband.ERRORS, ("instance", "device", "port")), ANY),
            ),
            ascending=True,
            empty=NO_INFINIBAND,
        ),
    ),
    collapsed=True,
)

LINKS = HEALTH_ROW, NVLINK, OTHERS
