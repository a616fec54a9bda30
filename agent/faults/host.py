"""Faults of the rest of the box: ports, arrays, disks, fans and power supplies."""

from agent.faults import places
from agent.faults.model import SAME_NODE, SAME_PORT, Fault, HiddenBy, Term
from agent.faults.promql import NODE as TARGETS
from agent.faults.promql import increase, of
from agent.faults.templates import COUNT, NODE, by_label, for_each, series, speed_of
from agent.faults.thresholds import RuleParameters
from agent.limits import paths
from agent.sources import chassis as box
from agent.sources import disk, infiniband

PORT = "{{ $labels.device }}:{{ $labels.port }}"
ERRORS, FLAPPING, RAID = "DgxInfinibandErrors", "DgxInfinibandFlapping", "DgxRaidDegraded"
CABLE = "Look at cable and transceiver, then at the port of the switch"

HOURLY = {
    "local_link_integrity_errors": 1,
    "excessive_buffer_overrun_errors": 1,
    "symbol_error": 120,
    "link_error_recovery": 300,
}
"""Errors an hour of a port that are too many, by kind (NVSentinel, nic-health-monitor)."""

DISK_FAULTS = {
    "controller": "has failed: its controller is gone; replace it, and rebuild the array",
    "temperature": "is overheating: it raises its temperature alarm; check the fans and the air",
    "file_system": "has a damaged file system, which has recorded errors; check it (fsck) when it "
    "is not mounted",
    "smart": "is failing: SMART predicts it; copy the data that you need, and replace it",
}
CHASSIS_FAULTS = {
    "fan": "replace the fan before GPUs get hot",
    "power_supply": "look at its cable and its feed, and replace it",
    "temperature": "check the fans and the air of the room",
}


def host_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    return (
        slow_port(),
        flapping(parameters),
        *infiniband_errors(parameters),
        *STORAGE_FAULTS,
        chassis(),
    )


def slow_port() -> Fault:
    """A port that carries less than its sheet says; a limit that its owner set is no fault."""
    labels = {"path": "=~network|infiniband", "direction": "=~receive|"}
    slow = of(paths.LIMIT, **labels) < of(paths.SPEC, **labels)
    negotiated = of(paths.LIMIT_INFO, **labels, origin="hardware")
    return Fault(
        alert="DgxLinkDegraded",
        kind="port_speed",
        place=places.PATH,
        when=slow.having(negotiated, "path", "device", "direction"),
        hold="5m",
        summary="port below its rate",
        sentence=("{path} {device} runs at {speed:bits} of {speed_limit:bits} Gb/s",),
        figure="speed",
        unit="bytes_per_second",
        limit=paths.SPEC,
        device="device",
        names=("path",),
        description=f"{{{{ $labels.path }}}} port {{{{ $labels.device }}}} of {NODE} runs at "
        f"{speed_of(paths.LIMIT)} of {speed_of(paths.SPEC)}.",
        do="Look at its cable or transceiver, at the port of the switch, and at ethtool or "
        "ibstat for the rate.",
    )


def flapping(parameters: RuleParameters) -> Fault:
    """A port that goes down and up again, by its own counter or as it was seen."""
    limits = parameters.thresholds
    over, downs = parameters.over(limits.infiniband_downs_window), limits.infiniband_downs
    counted = increase(infiniband.ERRORS, over, kind="link_downed")
    seen = f"ceil(changes({infiniband.LINK_UP}[{over}]) / 2)"
    return Fault(
        alert=FLAPPING,
        place=places.PORT,
        when=f"(sum without (kind) (round({counted})) >= {downs}) or ({seen} >= {downs})",
        summary="InfiniBand port flaps",
        description=f"Port {PORT} of {NODE} went down {COUNT} times in the last "
        f"{limits.infiniband_downs_window} (limit {downs}).",
        do="Replace its cable or transceiver; then look at the port of the switch.",
    )


def infiniband_errors(parameters: RuleParameters) -> tuple[Fault, Fault]:
    """More errors than a sound port has; or a port that was up, and is down."""
    over = parameters.over("1h")
    many = " or ".join(
        f"(round({increase(infiniband.ERRORS, over, kind=kind)}) >= {limit})"
        for kind, limit in HOURLY.items()
    )
    limits = by_label("kind", {kind: str(limit) for kind, limit in HOURLY.items()})
    was_up = f"max_over_time({infiniband.LINK_UP}[{parameters.over('1d')}]) == 1"
    by_flapping = HiddenBy(FLAPPING, SAME_PORT)
    return (
        Fault(
            alert=ERRORS,
            place=places.PORT,
            when=many,
            hold="5m",  # a port that flaps makes errors as well, and is reported as that
            labels={"sign": "errors"},
            summary="InfiniBand errors",
            description=f"Port {PORT} of {NODE} had {COUNT} errors ({{{{ $labels.kind }}}}) in the "
            f"last 1h (limit {limits}).",
            do=f"{CABLE}; ibstat, mlxlink -d.",
            hidden_by=(by_flapping,),
        ),
        Fault(
            alert=ERRORS,
            place=places.PORT,
            when=f"{infiniband.LINK_UP} == 0 and on ({TARGETS}, device, port) {was_up}",
            hold="5m",
            labels={"sign": "down"},
            summary="InfiniBand port down",
            description=f"Port {PORT} of {NODE} is down; it was up within the last day.",
            do=f"{CABLE}; ibstat, mlxlink -d.",
            hidden_by=(by_flapping,),
        ),
    )


TARGET = ("instance", "job")
ILL = for_each(
    f"{series(disk.FAULT, TARGET, {})} == 1", TARGET, "; disk {{ .Labels.device }} has a fault"
)
SIGN = by_label("kind", DISK_FAULTS)

STORAGE_FAULTS = (
    Fault(
        alert=RAID,
        kind="array_degraded",
        place=places.DEVICE,
        when=of(disk.MEMBERS, state="missing") > 0,
        hold="1m",
        summary="array is missing a member",
        sentence=("{device}: {missing:disk is|disks are} missing from the array",),
        figure="missing",
        device="device",
        description=f"{{{{ $labels.device }}}} of {NODE} is missing {COUNT} of its members "
        f"(limit 0{ILL}).",
        do="See cat /proc/mdstat, and save its data if it is a RAID 0; replace the disk, "
        "and add it again (mdadm --add).",
    ),
    Fault(
        alert="DgxDiskFailing",
        kind="disk_fault",
        place=places.DEVICE,
        when=of(disk.FAULT).equals(1),
        hold="5m",
        summary="disk is failing",
        sentence=("disk {device} {means}",),
        device="device",
        names=("kind",),
        terms={"means": Term(lambda found: DISK_FAULTS.get(found.names[0], ""), SIGN)},
        do="Run smartctl -a /dev/DISK and look at dmesg.",
        hidden_by=(HiddenBy(RAID, SAME_NODE, only=('kind="controller"',)),),
    ),
)
"""An array without a member; a disk with a sign of failing."""


def chassis() -> Fault:
    """A fan, a power supply, the air."""
    means = by_label("kind", CHASSIS_FAULTS)
    return Fault(
        alert="DgxChassisFault",
        kind="chassis_fault",
        place=places.SENSOR,
        when=of(box.FAULT).equals(1),
        hold="2m",
        summary="chassis alarm",
        sentence=("{device} raises an alarm: {means}",),
        device="sensor",
        names=("kind",),
        terms={"means": Term(lambda found: CHASSIS_FAULTS.get(found.names[0], ""), means)},
        do="Run ipmitool sel list.",
    )
