"""What to do about each kind of finding, and the alert that tells of it when nobody looks."""

from collections.abc import Mapping
from typing import NamedTuple

from agent.diagnosis.advice import XID_ADVICE
from agent.diagnosis.findings import FindingKind
from agent.model import Finding
from agent.specs.xids import meaning


class Remedy(NamedTuple):
    """The name of an alert, empty where there is none, and the first action."""

    alert: str
    action: str


RESET = "Drain the node and reset the GPU (nvidia-smi --gpu-reset -i GPU)."
DIAGNOSE = "Drain the node and run dcgmi diag -r 3; then ask for the GPU's replacement."
SERVICE = "Take the GPU out of use and ask for its replacement."
RESEAT = "Reseat the GPU or its riser, look at lspci -vv (LnkSta), open a support case."
TOPOLOGY = "Compare nvidia-smi topo -m with the system's; open a support case."

REMEDIES: Mapping[FindingKind, Remedy] = {
    FindingKind.SOURCE_DOWN: Remedy(
        "DgxAgentBlind", "See why under `Absent values`, and in journalctl -u dgx-telemetry."
    ),
    FindingKind.DRIVER_HANGS: Remedy(
        "DgxAgentBlind",
        "Drain the node. See dmesg for XID 119, 120 or blocked tasks; reboot it. Without "
        "persistence mode the driver may only need longer to start: nvidia-smi -pm 1.",
    ),
    FindingKind.DRIVER_RELEASED: Remedy("", "Remove that file after the upgrade."),
    FindingKind.GPU_NOT_ANSWERING: Remedy(
        "DgxGpuNotAnswering",
        "See dmesg for XID 119 or 120. If it goes on, let its job end, drain the node and reset "
        "the GPU or reboot.",
    ),
    FindingKind.GPUS_MISSING: Remedy(
        "DgxGpuMissing",
        "Drain the node, see dmesg for XID 79, and reboot it after its jobs have ended or saved a "
        "checkpoint; then open a support case.",
    ),
    FindingKind.GPUS_UNEXPECTED: Remedy("", "Set `system` in the configuration."),
    FindingKind.RECOVERY_NEEDED: Remedy(
        "DgxGpuRecoveryNeeded", "Drain the node and do what the driver asks for."
    ),
    FindingKind.REMAP_FAILURE: Remedy("DgxGpuRowRemapFailure", SERVICE),
    FindingKind.REMAP_PENDING: Remedy("DgxGpuPagesPending", f"Let jobs end. {RESET}"),
    FindingKind.PAGES_PENDING: Remedy(
        "DgxGpuPagesPending", "Let jobs end, then load the driver again or reboot."
    ),
    FindingKind.ROWS_NEAR: Remedy("DgxGpuEccRising", DIAGNOSE),
    FindingKind.PAGES_NEAR: Remedy("DgxGpuEccRising", DIAGNOSE),
    FindingKind.ECC_UNCORRECTED: Remedy(
        "DgxGpuEccUncorrected", f"Stop the job: its results are in doubt. {RESET}"
    ),
    FindingKind.ECC_LIFETIME: Remedy(
        "DgxGpuEccUncorrected",
        "See dmesg for XID 48, 63, 64, 94 or 95 of this GPU: after one of late, stop its jobs "
        "and reset it; else these errors are old.",
    ),
    FindingKind.FABRIC_SERVICE: Remedy(
        "DgxFabricFault", "systemctl start nvidia-fabricmanager, of the driver's own version."
    ),
    FindingKind.FABRIC_STATE: Remedy(
        "DgxFabricFault",
        "Drain the node, restart the Fabric Manager; if it stays, reset the GPU or reboot.",
    ),
    FindingKind.FABRIC_HEALTH: Remedy(
        "DgxFabricFault", "Look at nvidia-smi nvlink -s and /var/log/fabricmanager.log."
    ),
    FindingKind.SWITCH_ERROR: Remedy(
        "DgxFabricFault",
        "Drain the node, reset all GPUs at once or reboot; then open a support case.",
    ),
    FindingKind.LINKS_DOWN: Remedy("DgxNvlinkDown", f"{RESET} Then look at the Fabric Manager."),
    FindingKind.LINK_ERRORS: Remedy(
        "DgxNvlinkErrors", "Look at nvidia-smi nvlink -e; plan a reset of the GPU."
    ),
    FindingKind.STRAY_LINKS: Remedy("", TOPOLOGY),
    FindingKind.WRONG_PAIRS: Remedy("", TOPOLOGY),
    FindingKind.PCIE_LANES: Remedy("DgxPcieDegraded", RESEAT),
    FindingKind.PCIE_GENERATION: Remedy("DgxPcieDegraded", RESEAT),
    FindingKind.PCIE_SLOT: Remedy("", RESEAT),
    FindingKind.PORT_SPEED: Remedy(
        "DgxLinkDegraded", "Look at cable or transceiver, and at the port of the switch."
    ),
    FindingKind.TOO_HOT: Remedy("DgxGpuHot", "Look at fans, inlet air and dust."),
    FindingKind.CLOCKS_HELD_DOWN: Remedy(
        "DgxGpuThrottled", "Look at the cooling and at the power supplies."
    ),
    FindingKind.ARRAY_DEGRADED: Remedy(
        "DgxRaidDegraded", "See /proc/mdstat; replace the disk, and add it again (mdadm --add)."
    ),
    FindingKind.DISK_FAULT: Remedy(
        "DgxDiskFailing", "Look at dmesg and smartctl -a; replace the disk."
    ),
    FindingKind.CHASSIS_FAULT: Remedy(
        "DgxChassisFault", "Look at ipmitool sel list, and replace the part."
    ),
    FindingKind.CLOCK_STEPPED: Remedy("DgxClockStepped", "Look at timedatectl."),
    FindingKind.LIMIT_UNUSED: Remedy("", "Mend the [[limit]] in the configuration."),
    FindingKind.LOG_CLOSED: Remedy(
        "", "Run this as root, or add its user to the group systemd-journal."
    ),
    FindingKind.VALUES_ABSENT: Remedy(
        "DgxAgentBlind", "See which, and why, under `Absent values`."
    ),
}


def remedy(finding: Finding) -> Remedy:
    """Of an XID, what its code wants."""
    if finding.kind is FindingKind.XID:
        return Remedy("DgxGpuXid", XID_ADVICE[meaning(int(finding.device)).action])
    return REMEDIES[FindingKind(finding.kind)]
