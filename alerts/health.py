"""Alerts on the health of GPU memory, of the fabric and of PCIe: what the driver says it needs."""

from agent.sources import answers, ecc, fabric, fabric_service, gpu, kernel_log, pcie, xid
from agent.specs.xids import XidAction
from alerts import places
from alerts.model import Alert
from alerts.parameters import RuleParameters
from alerts.promql import GPU, NODE, REMEMBERED, events, increase, pick
from alerts.words import COUNT, GPU_ID, WHOLE, by_label, by_value, list_of, look_up
from alerts.words import GPU as ONE_GPU
from alerts.words import NODE as MACHINE
from alerts.xids import THERE

ONE = ("instance", "job", "uuid")

MOST_ROWS, MOST_PAGES = 512, 63
"""Uncorrected remaps, and retired pages, from which DCGM 4.6 has a GPU replaced."""

NEAR = 0.8
"""Share of those from which it is told that the limit comes near."""

REGISTERED = 3
"""Fabric state: completed."""

REPLAYS = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""PCIe replays a minute and lane that a sound link may have, by generation (DCGM 4.6)."""

NEEDS = {
    1: f"drain the node and reset the GPU (nvidia-smi --gpu-reset -i {GPU_ID})",
    2: "drain the node and reboot it",
    3: "end the jobs that use peer-to-peer traffic of this GPU, then look again",
    4: "drain the node, end all peer-to-peer traffic and reset the GPU",
    5: "restart the IMEX service of the rack, then look again",
    6: "drain the node and reset the bus of the GPU (reboot the node where that cannot be done)",
    7: "drain the node and reboot it",
}
HEALTH = {
    "degraded_bandwidth": "its bandwidth is degraded: links are down. Look at nvidia-smi nvlink -s",
    "route_recovery": "routes to it are being recovered. If it lasts, restart the Fabric Manager",
    "route_unhealthy": "routes to it are unhealthy. Drain the node and restart the Fabric Manager",
    "access_timeout_recovery": "it recovers from a timeout. Drain the node and reset the GPU",
    "incorrect_configuration": "its configuration is incorrect. Compare the versions of driver and "
    "Fabric Manager, and look at the Fabric Manager's log",
    "registration_error": "its registration completed with an error, and CUDA may not start on it. "
    "Restart the Fabric Manager, and look at its log",
}


def recovery_needed(_: RuleParameters) -> Alert:
    """The driver's own word, where it has one (R570 and newer)."""
    needs = by_value({number: f": {text}" for number, text in NEEDS.items()})
    return Alert(
        "DgxGpuRecoveryNeeded",
        f"{gpu.RECOVERY_ACTION} > 0",
        "critical",
        "driver asks for action",
        f"The driver asks for action {COUNT} on {ONE_GPU} (limit 0){needs}. The XID errors of the "
        "last minutes say why (dgx-telemetry check).",
        hold="3m",
        place=places.GPU,
    )


SLOWEST = 1
"""Seconds of a read from which the GPU does not answer in time (`agent/polling/gpu_threads.py`)."""

FEWEST = 2
"""Reads that fail in a minute: one may fail by chance, and is tried again after 10 s."""


def not_answering(parameters: RuleParameters) -> tuple[Alert, ...]:
    """One GPU whose driver calls hang or fail while those of others are answered."""
    name, summary = "DgxGpuNotAnswering", "driver calls {}"
    failed = increase(answers.READ_FAILURES, parameters.over("1m"))
    cure = (
        "Look at dmesg for XID 119 or 120 and at nvidia-smi -q -i "
        f"{GPU_ID}; if it goes on, drain the node and reset the GPU or reboot."
    )

    def alert(sign: str, words: str, expr: str, text: str) -> Alert:
        text, labels = f"{text} {cure}", {"sign": sign}
        return Alert(name, expr, "warning", summary.format(words), text, "1m", labels, places.GPU)

    return (
        alert(
            "slow",
            "hang",
            f"{answers.READ_SECONDS} > {SLOWEST}",
            f"Calls to {ONE_GPU} took up to {{{{ $value | humanizeDuration }}}} (limit {SLOWEST} "
            "s): its values are missing or late, those of other GPUs are not.",
        ),
        alert(
            "failing",
            "fail",
            f"{failed} >= {FEWEST}",
            f"{COUNT} reads of {ONE_GPU} failed in the last minute (limit {FEWEST}): some of its "
            "values are missing (dgx-telemetry check names them).",
        ),
    )


def pages_pending(_: RuleParameters) -> Alert:
    """Broken memory that is still in use."""
    return Alert(
        "DgxGpuPagesPending",
        f"({ecc.REMAP_PENDING} > 0) or ({ecc.RETIRED_PENDING} > 0)",
        "warning",
        "broken memory waits for a reset",
        f"{ONE_GPU} has {COUNT} sign of rows or pages that wait to be replaced (limit 0): broken "
        "memory is still in use. Let jobs end, then reset the GPU (before Ampere: load the driver "
        "again).",
        hold="8m",
        place=places.GPU,
    )


def ecc_growth(over: str, severity: str) -> str:
    """Growth of ECC errors: a GPU that MIG divides tells the aggregate ones alone."""
    return f"max without (lifetime) ({increase(ecc.ERRORS, over, severity=severity)})"


def ecc_rising(parameters: RuleParameters) -> tuple[Alert, ...]:
    """Memory that wears out, before it costs a job."""
    name, summary = "DgxGpuEccRising", "memory wears out"
    limits = parameters.thresholds
    grown = ecc_growth(parameters.over(limits.ecc_corrected_window), "corrected")
    rows = pick(ecc.REMAPPED_ROWS, severity="uncorrected")
    watch = "Run dcgmi diag -r 3 when the node is free, and open a support case."

    def alert(sign: str, expr: str, text: str) -> Alert:
        description = f"{text} {watch}"
        labels = {"sign": sign}
        return Alert(name, expr, "warning", summary, description, "3m", labels, places.GPU)

    return (
        alert(
            "corrected",
            f"{grown} >= {limits.ecc_corrected}",
            f"{ONE_GPU} corrected {COUNT} memory errors in the last {limits.ecc_corrected_window} "
            f"(limit {limits.ecc_corrected}).",
        ),
        alert(
            "rows",
            f"{rows} >= {MOST_ROWS * NEAR:.0f}",
            f"{ONE_GPU} has remapped {COUNT} rows after uncorrected errors (limit {MOST_ROWS}: "
            "then it is to be replaced).",
        ),
        alert(
            "pages",
            f"sum without (cause) ({ecc.RETIRED_PAGES}) >= {MOST_PAGES * NEAR:.0f}",
            f"{ONE_GPU} has retired {COUNT} pages (limit {MOST_PAGES}: then it is to be replaced).",
        ),
    )


def nvlink_fault(parameters: RuleParameters) -> tuple[Alert, ...]:
    """XID 144 to 150, by what their unit wants: told as XID errors."""
    window = parameters.thresholds.event_window
    rows = (("critical", XidAction.RESET), ("info", XidAction.IGNORE))
    cures = {
        XidAction.RESET: "Drain the node and reset the GPU; if it comes back, open a support case.",
        XidAction.IGNORE: "Nothing at once; if XID 154 follows, do what it says.",
    }

    def alert(severity: str, action: XidAction) -> Alert:
        over, memory = parameters.over(window), parameters.over(REMEMBERED)
        grown = events(xid.NVLINK_FAULTS, over, memory, action=action.value)
        return Alert(
            "DgxGpuXid",
            f"({grown}) {THERE}",
            severity,
            "XID {{ $labels.xid }} of NVLink 5",
            f"{ONE_GPU} had {COUNT} XID errors {{{{ $labels.xid }}}} of its unit "
            f"{{{{ $labels.unit }}}} in the last {window} (limit 0). {cures[action]}",
            hold="2m" if severity == "critical" else "5m",
            labels={"sign": "nvlink5"},
            place=places.GPU,
        )

    return tuple(alert(*row) for row in rows)


FABRIC = "DgxFabricFault"
FABRIC_LOG = "Look at systemctl status nvidia-fabricmanager and /var/log/fabricmanager.log."


def fabric_fault(_: RuleParameters) -> tuple[Alert, ...]:
    """Who manages the NVSwitches, and whether GPUs have joined."""
    waiting = list_of(fabric.STATE, "gpu", f"< {REGISTERED}", "instance", "job")
    return (
        Alert(
            FABRIC,
            f"{fabric_service.RUNNING} == 0",
            "critical",
            "Fabric Manager does not run",
            f"{COUNT} Fabric Managers run on {MACHINE} (limit 1), and its NVSwitches need it: no "
            "program that uses several GPUs starts. Start it: systemctl start "
            f"nvidia-fabricmanager. {FABRIC_LOG}",
            hold="2m",
            labels={"sign": "manager"},
            place=places.NODE,
        ),
        Alert(
            FABRIC,
            f"count by ({NODE}) ({fabric.STATE} < {REGISTERED})",
            "critical",
            "GPUs have not joined the fabric",
            f"{COUNT} GPUs of {MACHINE} have not joined the NVSwitch fabric (limit 0):{waiting}. "
            f"CUDA does not start on them. Restart the Fabric Manager. {FABRIC_LOG}",
            hold="5m",
            labels={"sign": "state"},
            place=places.NODE,
        ),
        Alert(
            FABRIC,
            f"{fabric.HEALTH} == 1",
            "warning",
            "fabric reports a fault",
            f"The fabric reports {COUNT} fault of {ONE_GPU} (limit 0): {by_label('kind', HEALTH)}.",
            hold="5m",
            labels={"sign": "health"},
            place=places.GPU,
        ),
    )


def switch_fault(parameters: RuleParameters) -> Alert:
    """What an NVSwitch itself reports."""
    window = parameters.thresholds.event_window
    over, memory = parameters.over(window), parameters.over(REMEMBERED)
    return Alert(
        FABRIC,
        events(kernel_log.SWITCH_ERRORS, over, memory, severity="fatal"),
        "critical",
        "fatal NVSwitch error",
        f"{{{{ $labels.switch }}}} of {MACHINE} had {COUNT} fatal errors {{{{ $labels.sxid }}}} "
        f"(SXid) in the last {window} (limit 0). Jobs that use it have failed. Drain the node and "
        "reset all GPUs and switches (nvidia-smi --gpu-reset), or reboot; if it comes back, open "
        "a support case.",
        labels={"sign": "switch"},
        place=places.SWITCH,
    )


def pcie_replays(parameters: RuleParameters) -> Alert:
    """Packets sent again, against what a link of its generation may have."""
    over = parameters.over("15m")
    each = f"rate({pcie.REPLAYS}[{over}]) * 60 / {pcie.WIDTH}"
    many = " or ".join(
        f"label_replace({each} > {limit:g} and on ({GPU}) ({pcie.GENERATION_LIMIT} == {generation})"
        f', "generation", "{generation}", "", "")'
        for generation, limit in REPLAYS.items()
    )
    limits = by_label("generation", {str(g): f"{limit:g}" for g, limit in REPLAYS.items()})
    lanes = look_up(pcie.WIDTH, WHOLE, *ONE)
    return Alert(
        "DgxPcieReplays",
        many,
        "warning",
        "PCIe link sends packets again",
        f"{ONE_GPU} sends {{{{ $value | humanize }}}} PCIe packets a minute and lane again (limit "
        f"{limits} at generation {{{{ $labels.generation }}}}; {lanes} lanes). Reseat the GPU or "
        "its riser, look at lspci -vv and dmesg (AER), and open a support case.",
        hold="10m",
        place=places.GPU,
    )
