"""Alerts on the rest of the box: InfiniBand ports, arrays, disks, fans and power supplies."""

from agent.sources import chassis_faults, disk, disk_faults, infiniband
from alerts import places
from alerts.model import Alert
from alerts.parameters import RuleParameters
from alerts.promql import increase, pick
from alerts.words import COUNT, NODE, WHOLE, by_label, for_each, look_up, series

PORT = "{{ $labels.device }}:{{ $labels.port }}"

HOURLY = {
    "local_link_integrity_errors": 1,
    "excessive_buffer_overrun_errors": 1,
    "symbol_error": 120,
    "link_error_recovery": 300,
}
"""Errors an hour of a port that are too many, by kind (NVSentinel, nic-health-monitor)."""

DISK_FAULTS = {
    "controller": "its controller is gone. Replace it, and rebuild the array",
    "temperature": "it reports that it is too hot. Look at the fans and at the air",
    "file_system": "its file system has recorded errors. Check it (fsck) when it is not mounted, "
    "and look at SMART (smartctl -a)",
    "smart": "SMART says that it fails. Copy off what is needed, see what is worn (smartctl -a), "
    "and replace it",
}
CHASSIS_FAULTS = {
    "fan": "Replace the fan before GPUs get hot",
    "power_supply": "Look at its cable and its supply, and replace it",
    "temperature": "Look at the fans and at the air of the room",
}


def infiniband_errors(parameters: RuleParameters) -> tuple[Alert, Alert]:
    """More errors than a sound port has; or a port that was up, and is down."""
    name, over = "DgxInfinibandErrors", parameters.over("1h")
    many = " or ".join(
        f"(round({increase(infiniband.ERRORS, over, kind=kind)}) >= {limit})"
        for kind, limit in HOURLY.items()
    )
    limits = by_label("kind", {kind: str(limit) for kind, limit in HOURLY.items()})
    cure = "Look at cable and transceiver, then at the port of the switch; ibstat, mlxlink -d."
    was_up = f"max_over_time({infiniband.LINK_UP}[{parameters.over('1d')}]) == 1"
    return (
        Alert(
            name,
            many,
            "warning",
            "InfiniBand errors",
            f"Port {PORT} of {NODE} had {COUNT} errors ({{{{ $labels.kind }}}}) in the last 1h "
            f"(limit {limits}). {cure}",
            hold="5m",  # a port that flaps makes errors as well, and is told as that
            labels={"sign": "errors"},
            place=places.PORT,
        ),
        Alert(
            name,
            f"{infiniband.LINK_UP} == 0 and {was_up}",
            "warning",
            "InfiniBand port down",
            f"Port {PORT} of {NODE} has {COUNT} links up (limit 1); it was up within the last day. "
            f"{cure}",
            hold="5m",
            labels={"sign": "down"},
            place=places.PORT,
        ),
    )


def infiniband_flapping(parameters: RuleParameters) -> Alert:
    """Down and up again: by the port's own counter, or as it was seen."""
    limits = parameters.thresholds
    over = parameters.over(limits.infiniband_downs_window)
    counted = increase(infiniband.ERRORS, over, kind="link_downed")
    seen = f"ceil(changes({infiniband.LINK_UP}[{over}]) / 2)"
    most = limits.infiniband_downs
    return Alert(
        "DgxInfinibandFlapping",
        f"(sum without (kind) (round({counted})) >= {most}) or ({seen} >= {most})",
        "warning",
        "InfiniBand port flaps",
        f"Port {PORT} of {NODE} went down {COUNT} times in the last "
        f"{limits.infiniband_downs_window} (limit {most}). Replace its cable or transceiver; then "
        "look at the port of the switch.",
        place=places.PORT,
    )


def raid_degraded(_: RuleParameters) -> Alert:
    """An array without a member."""
    working = look_up(disk.MEMBERS, WHOLE, "instance", "job", "device", state="working")
    node = ("instance", "job")
    ill = for_each(
        f"{series(disk_faults.FAULT, node, {})} == 1",
        node,
        "; disk {{ .Labels.device }} has a fault",
    )
    return Alert(
        "DgxRaidDegraded",
        f"{pick(disk.MEMBERS, state='missing')} > 0",
        "warning",
        "array lost a member",
        f"{{{{ $labels.device }}}} of {NODE} lacks {COUNT} of its members (limit 0; {working} "
        f"work{ill}; see cat /proc/mdstat). Save what is on it if it is a "
        "RAID 0; replace the disk, and add it again (mdadm --add).",
        hold="1m",
        place=places.DEVICE,
    )


def disk_failing(_: RuleParameters) -> Alert:
    """A sign of a failing disk."""
    return Alert(
        "DgxDiskFailing",
        f"{disk_faults.FAULT} == 1",
        "warning",
        "disk is failing",
        f"Disk {{{{ $labels.device }}}} of {NODE} shows {COUNT} sign of failing (limit 0): "
        f"{by_label('kind', DISK_FAULTS)}.",
        hold="5m",
        place=places.DEVICE,
    )


def chassis_fault(_: RuleParameters) -> Alert:
    """A fan, a power supply, the air."""
    return Alert(
        "DgxChassisFault",
        f"{chassis_faults.FAULT} == 1",
        "warning",
        "chassis alarm",
        f"{{{{ $labels.sensor }}}} of {NODE} raises {COUNT} alarm (limit 0). "
        f"{by_label('kind', CHASSIS_FAULTS)}.",
        hold="2m",
        place=places.SENSOR,
    )
