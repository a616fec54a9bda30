"""Expected messages of each scenario at its receiver: DESIGN's table, with the figures of the
texts."""

from typing import NamedTuple

ALL8 = frozenset("01234567")
ALL4 = frozenset("0123")
FIRST = frozenset("0")
NONE: frozenset[str] = frozenset()

STATION, ONE, H100, A100 = "dgx-station-v100", "dgx-1-v100", "dgx-h100", "dgx-a100"
GPU = r"GPU \d( \(GPU-[0-9a-f-]+\))? of [a-z-]+"
SHARE = r"[1-9]\d*(\.\d+)?% of the last"


class Alert(NamedTuple):
    """One alert: how urgent, what its text must say, and on which GPUs or devices."""

    name: str
    severity: str
    text: str  # a regular expression
    gpus: frozenset[str] = NONE
    devices: frozenset[str] = NONE
    cause: str = ""


class Scenario(NamedTuple):
    """A machine, and the alerts that it must raise: these and no others. `early` may come too,
    where what leads to the scenario fills a window that is a thirtieth of what users have."""

    system: str
    alerts: tuple[Alert, ...] = ()
    early: frozenset[str] = frozenset()


def starved(words: str, gpus: frozenset[str]) -> Alert:
    text = (
        rf"{GPU}: it waited for {SHARE} 15 min \(limit 25%\), most for {words}; nothing is broken"
    )
    return Alert("DgxGpuStarved", "warning", text, gpus)


def full(name: str, what: str, *devices: str) -> Alert:
    text = rf"(?i){what}.* at its limit for {SHARE} 10 min"
    return Alert(name, "warning", text, devices=frozenset(devices))


def exposed() -> Alert:
    text = (
        rf"{GPU}: it did nothing but exchange data with other GPUs for {SHARE} 15 min "
        r"\(limit 25%\)\. Overlap"
    )
    return Alert("DgxExposedCommunication", "info", text, ALL8)


GPUS8 = tuple(f"gpu{i}" for i in range(8))
PORTS8 = ("mlx5_0:1", *(f"mlx5_{i}:1" for i in range(1, 8)))


def critical(name: str, text: str, *gpus: str) -> Alert:
    return Alert(name, "critical", text, frozenset(gpus))


def warning(name: str, text: str, *gpus: str) -> Alert:
    return Alert(name, "warning", text, frozenset(gpus))


HELD = rf"{GPU}: it was occupied by an idle process for {SHARE} 30 min \(limit 90%\)"
HEAT = rf"{GPU}: it was slowed down by heat for {SHARE} 15 min \(limit 25%\)"
HOT = rf"{GPU}: the (core|memory) has reached its temperature limit"
LINK_DOWN = rf"{GPU}: 1 NVLink is down"
LINK_ERRORS = rf"{GPU}: NVLink 1 had [1-9]\d* errors in the last 1 h \(limit 5\)"
PORT = r"port-degraded: infiniband mlx5_0:1 runs at 25GB/s, below its rate"
LATE = rf"{GPU}: 7 GPUs wait for it, each for over 25%"
ECC = rf"{GPU}: its memory lost data: [1-9]\d* uncorrected ECC errors? in the last 30 min"
XID = rf"{GPU}: XID 48, memory lost data, (once|\d+ times) in 30 min"
BLIND = r"driver-hang: the NVIDIA driver does not respond\. Drain the node"

SCENARIOS: dict[str, Scenario] = {
    "training": Scenario(H100),
    "idle": Scenario(STATION),
    "held": Scenario(STATION, (Alert("DgxGpuHeldIdle", "info", HELD, ALL4),)),
    "starved-disk": Scenario(
        ONE, (starved("the disk", ALL8), full("DgxDiskSaturated", "Disk", "md0"))
    ),
    "starved-network": Scenario(
        STATION, (starved("the network", ALL4), full("DgxLinkSaturated", "network", "enp1s0f0"))
    ),
    "starved-pcie": Scenario(
        H100, (starved("PCIe", FIRST), full("DgxLinkSaturated", "pcie", "gpu0"))
    ),
    "starved-cpu": Scenario(STATION, (starved("the CPU", ALL4),)),
    "starved-host-thread": Scenario(STATION, (starved("its launching thread", ALL4),)),
    "starved-peer": Scenario(
        H100, (starved("a slow peer", ALL8 - FIRST), warning("DgxGpuStraggler", LATE, "0"))
    ),
    "nvlink-saturated": Scenario(H100, (full("DgxLinkSaturated", "nvlink", *GPUS8), exposed())),
    "infiniband-saturated": Scenario(
        H100, (full("DgxLinkSaturated", "infiniband", *PORTS8), exposed())
    ),
    "throttled": Scenario(
        STATION, (Alert("DgxGpuThrottled", "warning", HEAT, ALL4, cause="thermal"),)
    ),
    "gpu-hot": Scenario(STATION, (critical("DgxGpuHot", HOT, "0"),)),
    "gpu-slow": Scenario(
        STATION,
        (warning("DgxGpuNotAnswering", rf"{GPU}: driver calls took up to .* \(limit 1 s\)", "1"),),
    ),
    "gpu-lost": Scenario(
        STATION, (critical("DgxGpuMissing", rf"{GPU}: it no longer answers\.", "2"),)
    ),
    "nvlink-down": Scenario(STATION, (critical("DgxNvlinkDown", LINK_DOWN, "0", "3"),)),
    "nvlink-errors": Scenario(STATION, (warning("DgxNvlinkErrors", LINK_ERRORS, "0"),)),
    "pcie-degraded": Scenario(
        STATION, (warning("DgxPcieDegraded", rf"{GPU}: its PCIe link has lost lanes: x8", "0"),)
    ),
    "port-degraded": Scenario(
        H100, (Alert("DgxLinkDegraded", "warning", PORT, devices=frozenset(("mlx5_0:1",))),)
    ),
    "xid": Scenario(STATION, (critical("DgxGpuXid", XID, "0"),)),
    "ecc": Scenario(STATION, (critical("DgxGpuEccUncorrected", ECC, "0"),)),
    "row-remap": Scenario(
        A100,
        (critical("DgxGpuRowRemapFailure", rf"{GPU}: a memory row could not be remapped", "0"),),
    ),
    "exposed-communication": Scenario(H100, (exposed(),)),
    "hang": Scenario(
        STATION,
        (
            critical(
                "DgxJobHung", r"(4 GPUs wait|1 GPU waits) for process \d+, and none works\.", "1"
            ),
        ),
        early=frozenset({"DgxGpuStarved", "DgxGpuStraggler"}),
    ),
    "late-rank": Scenario(H100),
    "checkpoint": Scenario(STATION, (starved("the disk", ALL4),)),
    "threads": Scenario(STATION, (starved("the CPU", ALL4),)),
    "no-demand": Scenario(STATION),
    "driver-hang": Scenario(STATION, (critical("DgxAgentBlind", BLIND),)),
}
