"""Alarms of fans, power supplies and temperatures of the box, as hwmon shows them to all users."""

import re
from collections.abc import Iterator
from functools import partial

from agent.hardware.files import FileTree, names_in, text_or_nothing
from agent.hardware.host import Host
from agent.model import Absent, ReadKey, Reason, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import HostOptions, bounded, flag

CLASS = "/sys/class/hwmon"

FAULT = gauge(
    "dgx_chassis_fault",
    "1 while a fan, a power supply or a temperature sensor of the chassis raises its alarm, "
    "as its own chip reports; 0 otherwise.",
    "/sys/class/hwmon: *_alarm and *_fault of the chips of the chassis",
    ("sensor", "kind"),
)

FLAG = re.compile(r"((fan|in|curr|power|temp)\d+)_(?:\w+_)?(?:alarm|fault)")
ALARM_KINDS = {"fan": "fan", "in": "power_supply", "curr": "power_supply", "power": "power_supply"}
NO_ALARMS = re.compile(
    r"(coretemp|k10temp|nvme|drivetemp|mlx5|amdgpu|nouveau|acpitz|iwlwifi|"
    r"(nct|it8|w83|f71|sch|lm|adt|asus|thinkpad).*)"
)
"""Chips of CPUs, disks and cards; and of boards whose unused inputs raise alarms all day."""
UNREADABLE = Absent(Reason.FAILED, "the chip does not say whether it raises an alarm")


def _alarms(files: FileTree, out: ReadOutput) -> None:
    raised: dict[tuple[str, str], bool | None] = {}  # None while it cannot be read
    for chip in names_in(files, CLASS):
        folder = f"{CLASS}/{chip}"
        maker = text_or_nothing(files, f"{folder}/name")
        for file in names_in(files, folder) if not NO_ALARMS.fullmatch(maker) else ():
            if match := FLAG.fullmatch(file):
                label = text_or_nothing(files, f"{folder}/{match[1]}_label") or match[1]
                key = f"{label} ({maker} {chip})", ALARM_KINDS.get(match[2], "temperature")
                now, before = flag(files, f"{folder}/{file}"), raised.get(key)
                raised[key] = before if now is None else now or bool(before)
    if not raised:
        why = f"{CLASS} has no alarm of fans or power supplies (as root, ask the BMC)"
        raise Absent(Reason.MISSING, why)
    alarms_first = sorted(raised, key=lambda labels: (not raised[labels], labels))
    for labels in bounded(out, FAULT, alarms_first):
        value = raised[labels]
        out.add(FAULT, UNREADABLE if value is None else value, *labels)


def reads(host: Host, _options: HostOptions) -> Iterator[Read]:
    alarms, every = partial(_alarms, host.files), fixed(intervals.CHASSIS)
    yield Read(ReadKey("chassis_faults", "alarms"), (FAULT,), alarms, every)
