"""Faults of the rest of the box: ports, arrays, disks, fans and power supplies."""

from collections.abc import Iterator
from functools import partial

from agent.faults import places
from agent.faults.model import (
    CRITICAL,
    SAME_DEVICE,
    SAME_NODE,
    SAME_PORT,
    Fault,
    HiddenBy,
)
from agent.faults.promql import NODE as TARGETS
from agent.faults.promql import Condition, Recording, Vector, grown, increase, of, spoken
from agent.faults.thresholds import RuleParameters
from agent.faults.windows import Counted, FaultSamples
from agent.limits import paths
from agent.sources import chassis as box
from agent.sources import disk, infiniband

ERRORS, FLAPPING, RAID = "DgxInfinibandErrors", "DgxInfinibandFlapping", "DgxRaidDegraded"
FAILING, MEMORY = "DgxDiskFailing", "DgxMemoryErrors"
CABLE = "Check cable and transceiver, then the port of the switch"
SEE = "Run `ibstat` and `mlxlink -d`"

HOURLY = {
    "local_link_integrity_errors|excessive_buffer_overrun_errors": 1,
    "symbol_error": 120,
    "link_error_recovery": 300,
}
"""Errors an hour of a port that are too many, by kind (NVSentinel, nic-health-monitor)."""

DISK_FAULTS = {
    "controller": (
        "disk is dead",
        "has failed: its controller is gone",
        "Replace it (serial: `lsblk -o NAME,SERIAL`), and rebuild its array.",
    ),
    "temperature": (
        "disk is hot",
        "is overheating: it raises its temperature alarm",
        "Check the fans and the air.",
    ),
    "file_system": (
        "file system is damaged",
        "has a damaged file system, which has recorded errors",
        "Drain the node, unmount it, and check it (fsck).",
    ),
    "smart": (
        "disk is failing",
        "is failing: SMART predicts it",
        "Copy its data if it is in no array of /proc/mdstat, and replace it.",
    ),
}
"""Summary, sentence and first step of each sign of a disk."""

CHASSIS_FAULTS = {
    "fan": ("fan has failed", "Replace the fan before GPUs get hot."),
    "power_supply": ("power supply has failed", "Look at its cable and its feed, and replace it."),
    "temperature": ("temperature alarm", "Check the fans and the air of the room."),
}


def host_faults(parameters: RuleParameters) -> tuple[Fault, ...]:
    return (
        slow_port(),
        *flapping(parameters),
        *infiniband_errors(parameters),
        down(parameters),
        *arrays(),
        *disks(),
        *chassis(),
        MEMORY_LOST,
    )


def slow_port() -> Fault:
    """A port that carries less than its sheet promises; a limit that its owner set is no fault."""
    labels = {"path": "=~network|infiniband", "direction": "!=transmit"}
    negotiated = of(paths.LIMIT_INFO, origin="hardware")
    return Fault(
        alert="DgxLinkDegraded",
        kind="port_speed",
        place=places.PATH,
        when=(of(paths.LIMIT, **labels) < of(paths.SPEC)).having(
            negotiated, "path", "device", "direction"
        ),
        hold="5m",
        summary="port below its rate",
        sentence=(
            "{path} {device} runs at {speed:speed}, below its rate",
            " of {speed_limit:speed}",
        ),
        figure="speed",
        unit="bytes_per_second",
        limit=paths.SPEC,
        device="device",
        names=("path",),
        do="Jobs go on, slower. `ethtool` or `ibstat` shows the rate; look at its cable or "
        "transceiver, and at the port of the switch.",
    )


port_fault = partial(Fault, place=places.PORT, device="device", names=("port",))


def flapping(parameters: RuleParameters) -> Iterator[Fault]:
    """A port that goes down and up again, by its own counter or by the agent's readings."""
    limits = parameters.thresholds
    window, most = limits.infiniband_downs_window, limits.infiniband_downs
    over = parameters.over(window)
    text = increase(infiniband.ERRORS, over, kind="link_downed")
    counted = grown(infiniband.ERRORS, window, text, kind="link_downed").rounded()
    counted = counted.sum_without("kind") >= most
    falls = f"ceil(changes({infiniband.PORT_UP}[{over}]) / 2)"
    seen = grown(infiniband.PORT_UP, window, falls, Counted.FALLS) >= most
    yield port_fault(
        alert=FLAPPING,
        kind="port_flapping",
        when=counted.or_else(seen),
        summary="InfiniBand port flaps",
        sentence=(
            f"port {{device}}:{{0}} went down {{downs:once|times}} in the last {spoken(window)} "
            f"(limit {most})",
        ),
        figure="downs",
        do="Drain the node. Replace its cable or transceiver; then look at the port of the switch.",
    )


def infiniband_errors(parameters: RuleParameters) -> Iterator[Fault]:
    """More errors than a sound port has, by kind."""
    for kind, most in HOURLY.items():
        picked = {"kind": f"=~{kind}"}
        text = increase(infiniband.ERRORS, parameters.over("1h"), **picked)
        yield port_fault(
            alert=ERRORS,
            kind=f"port_{kind.partition('|')[0].removesuffix('s')}",
            when=grown(infiniband.ERRORS, "1h", text, **picked).rounded() >= most,
            hold="5m",  # a port that flaps makes errors as well, and is reported as that
            labels={"sign": "errors", **({} if "|" in kind else {"kind": kind})},
            summary="InfiniBand errors",
            sentence=(
                "port {device}:{0} had {errors:error|errors} ({1}) in the last 1 h "
                f"(limit {most})",
            ),
            names=("port", "kind"),
            figure="errors",
            do=f"It fails in the end. {SEE}. {CABLE}.",
            hidden_by=(HiddenBy(FLAPPING, SAME_PORT), HiddenBy(ERRORS, SAME_PORT, (DOWN,))),
        )


DOWN = 'sign="down"'


def down(parameters: RuleParameters) -> Fault:
    """A port that was up within the last day, and is down."""
    was = f"max_over_time({infiniband.PORT_UP}[{parameters.over('1d')}]) == 1"
    was_up = grown(infiniband.PORT_UP, "1d", was, Counted.PRESENCE)
    return port_fault(
        alert=ERRORS,
        kind="port_down",
        when=of(infiniband.PORT_UP).equals(0).having(was_up, "device", "port"),
        hold="4m",
        labels={"sign": "down"},
        summary="InfiniBand port down",
        sentence=("port {device}:{0} is down; it was up within the last day",),
        do=f"{SEE}. {CABLE}.",
        hidden_by=(HiddenBy(FLAPPING, SAME_PORT),),
    )


FAILED = of(disk.MEMBER_FAILED).equals(1).copied("array", "device")
FEWER = (of(disk.MEMBERS, state="missing") > 0).copied("array", "device")
SAME_MEMBER = (*SAME_NODE, "array", "member")


def arrays() -> Iterator[Fault]:
    """An array that is dead, or without a member, which is named if it is known."""
    do = "It still works. `mdadm --detail /dev/DISK` says which disk; replace it, and add it "
    do += "(`mdadm /dev/DISK --add`)."
    usual = partial(Fault, alert=RAID, place=places.DEVICE, hold="1m", device="device")
    yield usual(
        kind="array_dead",
        severity=CRITICAL,
        when=of(disk.MEMBERS, state="working").equals(0),
        hold="30s",
        labels={"sign": "dead"},
        summary="array has failed",
        sentence=("array {device} has lost more disks than it survives, or does not run",),
        do="Programs that use it fail: drain the node. See `cat /proc/mdstat` and `dmesg`; save "
        "what can be read before you replace disks and create it again.",
    )
    usual = partial(usual, do=do, hidden_by=(HiddenBy(RAID, SAME_DEVICE, ('sign="dead"',)),))
    yield usual(
        kind="array_member_failed",
        when=FAILED,
        labels={"sign": "member"},
        summary="array has lost {{ $labels.member }}",
        sentence=("array {device} has lost its member {0}",),
        names=("member",),
    )
    yield usual(
        kind="array_degraded",
        when=FEWER.unless(of(disk.MEMBER_FAILED).equals(1), "device"),
        labels={"sign": "missing"},
        summary="array is missing a member",
        sentence=("{missing:disk is|disks are} missing from array {device}",),
        figure="missing",
    )


SIGNS = Recording("instance_device:dgx_disk_fault:of_array", "")
"""Disks with signs of failing, with their array and themselves as its member."""

ARRAYS = of(disk.DISK_INFO, array="=~.+")
_OF_ARRAY = of(disk.FAULT).equals(1).with_label("array", ARRAYS, "device")
_FAILING = _OF_ARRAY.copied("member", "device").or_else(of(disk.FAULT).equals(1))


def _failing_rows(samples: FaultSamples, kind: str = "") -> Vector:
    """The rows of the record, of one kind if it is given: a disk of an array once, with it."""
    of_array = _OF_ARRAY.copied("member", "device").rows(samples)
    named = {frozenset(p for p in row if p[0] in ("device", "kind")) for row in of_array}
    alone = of(disk.FAULT).equals(1).rows(samples)
    found = {**of_array, **{row: value for row, value in alone.items() if row not in named}}
    return {row: value for row, value in found.items() if not kind or ("kind", kind) in row}


LAST_COPY = Recording("instance_device:dgx_disk_fault:last_copy", "")
"""Disks that fail in an array that has lost another member."""

_LAST = (
    Condition(f'{SIGNS}{{array!=""}}', _failing_rows, _FAILING.asks)
    .having(FEWER, "array")
    .unless(FAILED, "array", "member")
)


DISK_RECORDS = (
    Recording(
        str(SIGNS),
        str(_FAILING).replace(") or (", f") or on ({TARGETS}, device, kind) ("),
        held=True,
    ),
    Recording(str(LAST_COPY), str(_LAST), held=True),
)


def disks() -> Iterator[Fault]:
    """A disk with a sign of failing. A disk that holds the last copy of an array must stay in."""
    yield Fault(
        alert=FAILING,
        kind="disk_last_copy",
        severity=CRITICAL,
        place=places.DEVICE,
        when=_LAST.named(LAST_COPY),
        hold="4m",
        labels={"sign": "last_copy"},
        summary="disk with the last copy is failing",
        sentence=("disk {device} is failing, and its array {0} has lost another member",),
        device="device",
        names=("array",),
        do="Copy its data first; do not pull it: it holds the last good copy.",
    )
    for kind, (summary, sentence, do) in DISK_FAULTS.items():
        yield Fault(
            alert=FAILING,
            kind=f"disk_{kind}",
            place=places.DEVICE,
            when=_FAILING.made(f'{SIGNS}{{kind="{kind}"}}', partial(_failing_rows, kind=kind)),
            hold="5m",
            labels={"sign": kind},
            summary=summary,
            sentence=(f"disk {{device}} {sentence}",),
            device="device",
            names=("kind",),
            do=f"{do} See `smartctl -a /dev/DISK` and `dmesg`.",
            hidden_by=(
                HiddenBy(RAID, SAME_MEMBER, ('member!=""',)),
                HiddenBy(FAILING, SAME_DEVICE, ('sign="last_copy"',)),
            ),
        )


def chassis() -> Iterator[Fault]:
    """Faults of a fan, a power supply, or the air's temperature."""
    for kind, (summary, do) in CHASSIS_FAULTS.items():
        yield Fault(
            alert="DgxChassisFault",
            kind=f"chassis_{kind}",
            place=places.SENSOR,
            when=of(box.FAULT, kind=kind).equals(1),
            hold="2m",
            labels={"sign": kind},
            summary=summary,
            sentence=(f"{summary}: {{device}} raises its alarm",),
            device="sensor",
            names=("kind",),
            do=f"{do} Run `ipmitool sel list`.",
        )


MEMORY_LOST = Fault(
    alert=MEMORY,
    kind="dimm_uncorrected",
    severity=CRITICAL,
    place=places.DIMM,
    when=of(box.DIMM_ERRORS, severity="uncorrected") > 0,
    labels={"sign": "uncorrected"},
    summary="host memory has lost data",
    sentence=(
        "memory {device} lost data: {errors:uncorrected error|uncorrected errors} since the boot",
    ),
    figure="errors",
    device="dimm",
    do="Drain the node, and replace the DIMM: `ras-mc-ctl --errors` and `ipmitool sel list` name "
    "its slot.",
)
