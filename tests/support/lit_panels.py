"""Panels that turn yellow or red in each scenario, and the words of the timeline of states."""

Lit = dict[str, str]


def red(*places: str) -> Lit:
    return dict.fromkeys(places, "red")


OF_SOME_GPUS = red(
    "dgx-fleet/GPUs, most starved first: Lost",
    "dgx-fleet/Time lost, by node and cause",
    "dgx-node/Each GPU: Starved",
    "dgx-gpu/Time lost by each GPU: Starved",
)
OF_ALL_GPUS = (
    "dgx-fleet/GPU time starved",
    "dgx-fleet/Look here first: Of its time",
    "dgx-node/GPU time starved",
)
STARVED = {**OF_SOME_GPUS, **red(*OF_ALL_GPUS)}
FULL = red(
    "dgx-fleet/Data paths, longest saturated first: Saturated",
    "dgx-node/Time at the limit, by path",
)
DEGRADED = red("dgx-node/Degraded paths, worst first: Of spec")

BY_GPU = "dgx-node/Errors by GPU: Errors", "dgx-gpu/Errors by GPU: Errors"

LIT: dict[str, Lit] = {
    "dgx-1-p100:training": {},
    "dgx-1-v100:training": {},
    "dgx-station-v100:training": {},
    "dgx-h100:training": {},
    "dgx-h100:idle": {},
    # Its first minute counts as starved: that nothing will come can only be said after it.
    "dgx-h100:held": {
        **STARVED,
        **red("dgx-node/Each GPU: Held", "dgx-gpu/Time lost by each GPU: Held"),
    },
    # The disks of a DGX-1 have a limit by its sheet; those of a DGX H100 have none, but are busy.
    "dgx-1-v100:starved-disk": {**STARVED, **FULL},
    "dgx-h100:starved-disk": {**STARVED, **FULL},
    "dgx-h100:starved-network": {**STARVED, **FULL},
    # One GPU of eight starves, and the others are idle: an eighth of the node's time.
    "dgx-h100:starved-pcie": {
        **OF_SOME_GPUS,
        **dict.fromkeys((*OF_ALL_GPUS, "dgx-fleet/Time lost, by node and cause"), "yellow"),
        **FULL,
        **red("dgx-node/Time at the limit"),
    },
    "dgx-h100:starved-cpu": STARVED,
    "dgx-h100:starved-host-thread": STARVED,
    "dgx-h100:starved-peer": STARVED,
    "dgx-h100:nvlink-saturated": {**FULL, **red("dgx-node/Time at the limit")},
    "dgx-h100:infiniband-saturated": {**FULL, **red("dgx-node/Time at the limit")},
    "dgx-h100:throttled": red(
        "dgx-fleet/Look here first: Of its time",
        "dgx-fleet/Time lost, by node and cause",
        "dgx-node/Each GPU: Throttled",
        "dgx-gpu/Time lost by each GPU: Throttled",
    ),
    "dgx-h100:gpu-hot": red("dgx-node/Thermal headroom (below slowdown)"),
    "dgx-h100:gpu-lost": red(
        "dgx-fleet/GPUs missing",
        "dgx-fleet/Look here first: GPUs missing",
        "dgx-node/GPUs missing",
        "dgx-gpu/Time lost by each GPU: Not observed",
    ),
    "dgx-h100:nvlink-down": {
        **DEGRADED,
        **red("dgx-node/NVLinks down", "dgx-node/NVLinks that are down: Up"),
    },
    "dgx-h100:nvlink-errors": {"dgx-node/NVLinks with errors: Errors": "yellow"},
    "dgx-h100:pcie-degraded": {**DEGRADED, **red("dgx-node/PCIe slots: Lanes")},
    "dgx-h100:port-degraded": DEGRADED,
    "dgx-h100:xid": red(*BY_GPU),
    "dgx-h100:ecc": red(*BY_GPU),
    "dgx-h100:row-remap": red("dgx-gpu/Memory, and what the driver asks for: Failed rows"),
}
"""By SYSTEM:SCENARIO. Everything that is not listed stays as it should."""

VERDICTS = {
    "dgx-1-p100:training": "busy/none",
    "dgx-h100:idle": "idle/none",
    "dgx-1-v100:starved-disk": "starved/disk",
    "dgx-h100:starved-disk": "starved/disk",
    "dgx-h100:starved-network": "starved/network",
    "dgx-h100:starved-pcie": "idle/none",  # seven of eight
    "dgx-h100:starved-cpu": "starved/cpu",
    "dgx-h100:starved-host-thread": "starved/host_thread",
    "dgx-h100:starved-peer": "busy/none",  # the first works, and seven wait half the time
    "dgx-h100:nvlink-saturated": "communicating/nvlink",
    "dgx-h100:infiniband-saturated": "communicating/infiniband",
}
"""State that takes most of the time of the whole machine."""
