"""Chassis alarms (fans, power supplies, and temperatures), and main memory errors. All users can
read them from the kernel's hwmon and EDAC files."""

import re
from collections.abc import Iterator
from functools import partial

from agent.hardware.files import FileTree, names_in, read_int, text_or_nothing
from agent.hardware.host import Host
from agent.metrics import declared_beside
from agent.model import Absent, ReadKey, Reason
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import HostOptions, bounded, flag

CLASS = "/sys/class/hwmon"
EDAC = "/sys/devices/system/edac/mc"

_METRICS = declared_beside(__file__)
FAULT = _METRICS["dgx_chassis_fault"]
DIMM_ERRORS = _METRICS["dgx_dimm_errors_total"]
COUNTS = {
    f"{place}_count": severity
    for severity, short in (("corrected", "ce"), ("uncorrected", "ue"))
    for place in (f"dimm_{short}", f"{short}_noinfo")
}

FLAG = re.compile(r"((fan|in|curr|power|temp)\d+)_(?:\w+_)?(?:alarm|fault)")
ALARM_KINDS = {"fan": "fan", "in": "power_supply", "curr": "power_supply", "power": "power_supply"}
NO_ALARMS = re.compile(
    r"(coretemp|k10temp|nvme|drivetemp|mlx5|amdgpu|nouveau|acpitz|iwlwifi|"
    r"(nct|it8|w83|f71|sch|lm|adt|asus|thinkpad).*)"
)
"""Names of hwmon chips whose alarms are ignored. They belong to CPUs, disks, or cards, or they are
mainboard chips that raise permanent alarms for unused inputs."""
UNREADABLE = Absent(Reason.FAILED, "the chip does not say whether it raises an alarm")


def _alarms(files: FileTree, out: ReadOutput) -> None:
    raised: dict[tuple[str, str], bool | None] = {}  # None if it cannot be read
    for chip in names_in(files, CLASS):
        folder = f"{CLASS}/{chip}"
        maker = text_or_nothing(files, f"{folder}/name")
        for file in names_in(files, folder) if not NO_ALARMS.fullmatch(maker) else ():
            if match := FLAG.fullmatch(file):
                label = text_or_nothing(files, f"{folder}/{match[1]}_label") or match[1]
                key = f"{label} ({maker} {chip})", ALARM_KINDS.get(match[2], "temperature")
                now, before = flag(files, f"{folder}/{file}"), raised.get(key)
                raised[key] = before if now is None else now or bool(before)
    alarms_first = sorted(raised, key=lambda labels: (not raised[labels], labels))
    none = f"{CLASS} has no alarm of fans or power supplies (as root, ask the BMC)"
    for labels in bounded(out, FAULT, alarms_first, none=none):
        value = raised[labels]
        out.add(FAULT, UNREADABLE if value is None else value, *labels)


def _dimms(files: FileTree, out: ReadOutput) -> None:
    """Add the error count of each DIMM. Errors of unknown DIMMs count for their controller."""
    found: list[tuple[str, str, str]] = []
    for controller in names_in(files, EDAC):
        for part in ("", *names_in(files, f"{EDAC}/{controller}")):
            folder = f"{EDAC}/{controller}/{part}".rstrip("/")
            label = text_or_nothing(files, f"{folder}/dimm_label")
            dimm = f"{label} ({controller} {part})".strip() if part else controller
            counts = (name for name in names_in(files, folder) if name in COUNTS)
            found += ((dimm, COUNTS[name], f"{folder}/{name}") for name in counts)
    none = f"{EDAC} lists no memory: no driver of EDAC is loaded"
    for dimm, severity, file in bounded(out, DIMM_ERRORS, found, none=none):
        out.ask(DIMM_ERRORS, partial(read_int, files, file), dimm, severity)


def reads(host: Host, _options: HostOptions) -> Iterator[Read]:
    alarms, every = partial(_alarms, host.files), fixed(intervals.CHASSIS)
    yield Read(ReadKey("chassis_faults", "alarms"), (FAULT,), alarms, every)
    dimms = partial(_dimms, host.files)
    yield Read(ReadKey("chassis_faults", "memory"), (DIMM_ERRORS,), dimms, fixed(intervals.ECC))
