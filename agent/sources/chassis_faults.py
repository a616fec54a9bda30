"""Fans and power supplies that raise an alarm, where hwmon shows them without root."""

import re
from collections.abc import Iterator

from agent.clock import Clock
from agent.hardware.files import FileTree, names_in, read_int, read_text
from agent.hardware.host import Host
from agent.model import Absent, ReadKey, Reason, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.options import MOST_DEVICES, HostOptions, left_out

CLASS = "/sys/class/hwmon"
FAULT = gauge(
    "dgx_chassis_fault",
    "1 while a fan, a power supply or a temperature of the box raises an alarm, by its own chip; 0 "
    "while it does not.",
    "/sys/class/hwmon: *_alarm and *_fault of the box's chips",
    ("sensor", "kind"),
)

FLAG = re.compile(r"((fan|in|curr|power|temp)\d+)_(?:\w+_)?(?:alarm|fault)")
KINDS = {"fan": "fan", "in": "power_supply", "curr": "power_supply", "power": "power_supply"}
TEMPERATURE = "temperature"

OTHERS = re.compile(
    r"(coretemp|k10temp|nvme|drivetemp|mlx5|amdgpu|nouveau|acpitz|iwlwifi|"
    r"(nct|it8|w83|f71|sch|lm|adt|asus|thinkpad).*)"
)
"""Chips of CPUs, disks and cards; and of boards whose unused inputs raise alarms all day."""


class ChassisFaults:
    """Every flag of every chip of the box; several flags of one channel are one sensor."""

    def __init__(self, files: FileTree) -> None:
        self._files = files

    def read(self, out: ReadOutput) -> None:
        raised: dict[tuple[str, str], bool] = {}
        for chip in names_in(self._files, CLASS):
            folder = f"{CLASS}/{chip}"
            maker = self._text(f"{folder}/name")
            for file in names_in(self._files, folder) if not OTHERS.fullmatch(maker) else ():
                if match := FLAG.fullmatch(file):
                    label = self._text(f"{folder}/{match[1]}_label") or match[1]
                    key = f"{maker} {chip}: {label}", KINDS.get(match[2], TEMPERATURE)
                    raised[key] = raised.get(key, False) or self._flag(f"{folder}/{file}")
        if not raised:
            why = f"{CLASS} has no alarm of fans or power supplies (as root, ask the BMC)"
            raise Absent(Reason.MISSING, why)
        alarms_first = sorted(raised, key=lambda labels: (not raised[labels], labels))
        for labels in sorted(alarms_first[:MOST_DEVICES]):
            out.add(FAULT, raised[labels], *labels)
        if (more := left_out(len(raised))) is not None:
            out.absent(FAULT, more)

    def _flag(self, path: str) -> bool:
        try:
            return read_int(self._files, path) > 0
        except Absent:  # a channel that is switched off
            return False

    def _text(self, path: str) -> str:
        try:
            return read_text(self._files, path)
        except Absent:
            return ""


def reads(host: Host, _clock: Clock, _options: HostOptions) -> Iterator[Read]:
    """The read of the alarms."""
    faults = ChassisFaults(host.files)
    key = ReadKey("chassis_faults", "alarms")
    yield Read(key, (FAULT,), faults.read, fixed(intervals.CHASSIS))
