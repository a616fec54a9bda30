"""Chassis sensors: power, air temperature, and alarms of fans and power supplies, where hwmon shows
them without root."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import chain, count
from typing import NamedTuple

from agent.hardware.files import FileTree, names_in, read_int, text_or_nothing
from agent.hardware.host import Host
from agent.model import Absent, Metric, ReadKey, Reason, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import HostOptions, bounded, flag

CLASS = "/sys/class/hwmon"
SENSOR = ("sensor",)

POWER = gauge(
    "dgx_chassis_power_watts",
    "Power that the whole box draws in watts, by sensor: the board's own meter, GPUs included.",
    "/sys/class/hwmon: power*_average, power*_input of power meters and labelled system sensors",
    SENSOR,
)
TEMPERATURE = gauge(
    "dgx_chassis_temperature_celsius",
    "Temperature of the air through the box in degrees Celsius, by sensor: inlet, ambient, "
    "exhaust. Sensors of CPUs, disks and cards are left out.",
    "/sys/class/hwmon: temp*_input whose label names the air",
    SENSOR,
)
FAULT = gauge(
    "dgx_chassis_fault",
    "1 while a fan, a power supply or a temperature of the box raises an alarm, as its own chip "
    "reports; 0 otherwise.",
    "/sys/class/hwmon: *_alarm and *_fault of the box's chips",
    ("sensor", "kind"),
)

MICRO, MILLI = 1e-6, 1e-3


class SensorKind(NamedTuple):
    """Files of chips that belong to the chassis, and their unit.

    A file counts if its chip's name or its label matches: `power_meter` is ACPI's meter of the
    whole system, while labels are what the board's maker wrote beside a sensor.
    """

    metric: Metric
    file: re.Pattern[str]  # the number of the channel is its group
    chips: frozenset[str]
    label: re.Pattern[str]
    unit: float
    least: float  # readings at or below this are no reading: a sensor that is not connected
    most: float


KINDS = (
    SensorKind(
        POWER,
        re.compile(r"(power\d+)_(?:average|input)"),
        frozenset({"power_meter"}),
        re.compile(r"(?i)^(system|chassis)( (input )?power)?$"),
        MICRO,
        0.0,
        100_000.0,
    ),
    SensorKind(
        TEMPERATURE,
        re.compile(r"(temp\d+)_input"),
        frozenset(),
        re.compile(r"(?i)\b(inlet|intake|ambient|exhaust|outlet)\b"),
        MILLI,
        -40.0,
        125.0,
    ),
)

NOT_CHASSIS = frozenset({"coretemp", "k10temp", "nvme", "drivetemp", "mlx5", "amdgpu", "nouveau"})
"""Chips that sit on a CPU, disk or card, whatever they label their sensors."""


class Sensor(NamedTuple):
    """One sensor of the chassis: its name, and the file that it is read from."""

    kind: SensorKind
    name: str
    path: str


class Chassis:
    """The sensors as they are found; looked for again when the chips change."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._chips: list[str] | None = None
        self._sensors: list[Sensor] = []

    def read(self, out: ReadOutput) -> None:
        chips = names_in(self._files, CLASS)
        if chips != self._chips:
            self._chips, self._sensors = chips, list(sensors(self._files, chips))
        for sensor in bounded(out, POWER, self._sensors):
            out.ask(sensor.kind.metric, partial(value, self._files, sensor), sensor.name)
        for kind in KINDS:
            if not any(sensor.kind is kind for sensor in self._sensors):
                why = f"{CLASS} has no such sensor of the chassis (as root, ask its BMC)"
                out.absent(kind.metric, Absent(Reason.MISSING, why))


def sensors(files: FileTree, chips: list[str]) -> Iterator[Sensor]:
    taken: set[str] = set()
    for chip in sorted(chips, key=lambda chip: (int(re.sub(r"\D", "", chip) or 0), chip)):
        folder = f"{CLASS}/{chip}"
        maker = text_or_nothing(files, f"{folder}/name")
        for kind, name, file in _channels(files, folder, maker) if maker not in NOT_CHASSIS else ():
            names = chain((name,), (f"{name} {more}" for more in count(2)))
            unique = next(one for one in names if one not in taken)
            taken.add(unique)
            yield Sensor(kind, unique, f"{folder}/{file}")


def _channels(files: FileTree, folder: str, maker: str) -> Iterator[tuple[SensorKind, str, str]]:
    found: set[str] = set()
    for file in names_in(files, folder):
        for kind in KINDS:
            match = kind.file.fullmatch(file)
            if match is None or match[1] in found:
                continue
            label = text_or_nothing(files, f"{folder}/{match[1]}_label")
            if maker in kind.chips or kind.label.search(label):
                found.add(match[1])  # where a meter gives both, `average` comes first
                yield kind, f"{maker}: {label or match[1]}", file


def value(files: FileTree, sensor: Sensor) -> float:
    """Return the reading of a sensor, in the unit of its metric; raises Absent if it is no
    reading."""
    kind = sensor.kind
    read = read_int(files, sensor.path) * kind.unit
    if not kind.least < read < kind.most:
        raise Absent(Reason.UNKNOWN, f"{sensor.path} reads {read:g}, which is not a reading")
    return read


FLAG = re.compile(r"((fan|in|curr|power|temp)\d+)_(?:\w+_)?(?:alarm|fault)")
ALARM_KINDS = {"fan": "fan", "in": "power_supply", "curr": "power_supply", "power": "power_supply"}
NO_ALARMS = re.compile(
    r"(coretemp|k10temp|nvme|drivetemp|mlx5|amdgpu|nouveau|acpitz|iwlwifi|"
    r"(nct|it8|w83|f71|sch|lm|adt|asus|thinkpad).*)"
)
"""Chips of CPUs, disks and cards; and of boards whose unused inputs raise alarms all day."""


def _alarms(files: FileTree, out: ReadOutput) -> None:
    raised: dict[tuple[str, str], bool] = {}
    for chip in names_in(files, CLASS):
        folder = f"{CLASS}/{chip}"
        maker = text_or_nothing(files, f"{folder}/name")
        for file in names_in(files, folder) if not NO_ALARMS.fullmatch(maker) else ():
            if match := FLAG.fullmatch(file):
                label = text_or_nothing(files, f"{folder}/{match[1]}_label") or match[1]
                key = f"{maker} {chip}: {label}", ALARM_KINDS.get(match[2], "temperature")
                raised[key] = raised.get(key, False) or bool(flag(files, f"{folder}/{file}"))
    if not raised:
        why = f"{CLASS} has no alarm of fans or power supplies (as root, ask the BMC)"
        raise Absent(Reason.MISSING, why)
    alarms_first = sorted(raised, key=lambda labels: (not raised[labels], labels))
    for labels in bounded(out, FAULT, alarms_first):
        out.add(FAULT, raised[labels], *labels)


def reads(host: Host, _options: HostOptions) -> Iterator[Read]:
    sensors, alarms = Chassis(host.files).read, partial(_alarms, host.files)
    key, every = ReadKey("chassis", "sensors"), fixed(intervals.CHASSIS)
    yield Read(key, (POWER, TEMPERATURE), sensors, every)
    yield Read(ReadKey("chassis_faults", "alarms"), (FAULT,), alarms, every)
