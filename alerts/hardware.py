"""Alerts for those who look after the hardware."""

from agent.sources import system
from alerts.model import Alert, Group

GPU_MISSING = Alert(
    name="DgxGpuMissing",
    expr=f"{system.GPUS} < {system.GPUS_EXPECTED}",
    hold="1m",
    severity="critical",
    summary="A GPU is missing.",
    description=(
        "Only {{ $value }} GPUs answer on {{ $labels.instance }}, fewer than the system has. "
        "Drain the node, read the XID errors of the last hours, then reset the GPU or reboot; a "
        "GPU that stays away is due for service."
    ),
)

HARDWARE = Group("dgx-hardware", (GPU_MISSING,))
