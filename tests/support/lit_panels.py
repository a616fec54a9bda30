"""Which panels turn yellow or red in each scenario, and what the timeline of states says."""

Lit = dict[str, str]


def red(*places: str) -> Lit:
    return dict.fromkeys(places, "red")


OF_SOME_GPUS = red(
    "dgx-fleet/GPUs, most starved first: Lost",
    "dgx-gpu/Time lost by each GPU: Starved",
)
OF_ALL_GPUS = (
    "dgx-fleet/GPU time starved",
    "dgx-fleet/Nodes, most starved first: Starved",
    "dgx-node/GPU time starved",
    "dgx-input-pipeline/Time lost by cause, in all",
    "dgx-input-pipeline/Starved in all",
)
STARVED = {**OF_SOME_GPUS, **red(*OF_ALL_GPUS)}
FULL = red(
    "dgx-fleet/Nodes, most starved first: Fullest path",
    "dgx-fleet/Data paths, longest saturated first: Saturated",
    "dgx-node/Time for which paths were full",
)
FULL_IN = {**FULL, **red("dgx-input-pipeline/Time for which paths in were full")}
DEGRADED = red(
    "dgx-fleet/Data paths, least of their spec first: Of spec",
    "dgx-links/Paths below their spec: Of spec",
)

LIT: dict[str, Lit] = {
    "dgx-1-p100:training": {},
    "dgx-1-v100:training": {},
    "dgx-station-v100:training": {},
    "dgx-h100:training": {},
    "dgx-h100:idle": {},
    # Its first minute counts as starved: that nothing will come can only be said after it.
    "dgx-h100:held": {
        **STARVED,
        **red("dgx-fleet/Nodes, most starved first: Held", "dgx-gpu/Time lost by each GPU: Held"),
    },
    # The disks of a DGX-1 have a limit by its sheet, those of a DGX H100 have none.
    "dgx-1-v100:starved-disk": {**STARVED, **FULL_IN},
    "dgx-h100:starved-disk": STARVED,
    "dgx-h100:starved-network": {**STARVED, **FULL_IN},
    # One GPU of eight starves, and the others are idle: an eighth of the node's time.
    "dgx-h100:starved-pcie": {
        **OF_SOME_GPUS,
        **dict.fromkeys(OF_ALL_GPUS, "yellow"),
        **FULL_IN,
        **red("dgx-links/Time for which PCIe was full"),
    },
    "dgx-h100:starved-cpu": STARVED,
    "dgx-h100:starved-host-thread": STARVED,
    "dgx-h100:starved-peer": STARVED,
    "dgx-h100:nvlink-saturated": {**FULL, **red("dgx-links/Time for which NVLink was full")},
    "dgx-h100:infiniband-saturated": {
        **FULL,
        **red("dgx-links/Time for which InfiniBand was full"),
    },
    "dgx-h100:throttled": red(
        "dgx-fleet/Nodes, most starved first: Throttled",
        "dgx-gpu/Time lost by each GPU: Throttled",
    ),
    "dgx-h100:gpu-hot": red("dgx-node/Degrees left"),
    "dgx-h100:gpu-lost": red(
        "dgx-fleet/GPUs missing",
        "dgx-fleet/Nodes, most starved first: GPUs missing",
        "dgx-node/GPUs missing",
        "dgx-gpu/Losses in this time range: Not observed",
    ),
    "dgx-h100:nvlink-down": {
        **DEGRADED,
        **red("dgx-node/NVLinks down", "dgx-links/NVLinks down"),
    },
    "dgx-h100:nvlink-errors": {"dgx-links/NVLinks with errors: Errors": "yellow"},
    "dgx-h100:pcie-degraded": {**DEGRADED, **red("dgx-links/PCIe slots: Lanes")},
    "dgx-h100:port-degraded": DEGRADED,
    "dgx-h100:xid": red("dgx-node/XID errors", "dgx-gpu/Losses in this time range: XID errors"),
    "dgx-h100:ecc": red(
        "dgx-node/Uncorrected ECC errors", "dgx-gpu/Losses in this time range: ECC errors"
    ),
    "dgx-h100:row-remap": red("dgx-gpu/Rows that could not be remapped: Failed"),
}
"""By SYSTEM:SCENARIO. Everything that is not listed stays as it should."""

VERDICTS: dict[str, set[str]] = {
    "dgx-1-p100:training": {"busy"},
    "dgx-1-v100:training": {"busy"},
    "dgx-station-v100:training": {"busy"},
    "dgx-h100:training": {"busy"},
    "dgx-h100:idle": {"idle"},
    "dgx-h100:held": {"held"},
    "dgx-1-v100:starved-disk": {"starved: disk"},
    "dgx-h100:starved-disk": {"starved: disk"},
    "dgx-h100:starved-network": {"starved: network"},
    "dgx-h100:starved-pcie": {"starved: pcie", "idle"},
    "dgx-h100:starved-cpu": {"starved: cpu"},
    "dgx-h100:starved-host-thread": {"starved: host_thread"},
    "dgx-h100:starved-peer": {"starved: peer", "busy"},
    "dgx-h100:nvlink-saturated": {"communicating: nvlink"},
    "dgx-h100:infiniband-saturated": {"communicating: infiniband"},
    "dgx-h100:throttled": {"busy"},
    "dgx-h100:gpu-hot": {"busy"},
}
