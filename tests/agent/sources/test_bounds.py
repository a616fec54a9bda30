"""Bounds on the reports of a machine with hundreds of devices, and the notes on the rest."""

from collections.abc import Callable
from types import ModuleType

import pytest

from agent.model import Reason
from agent.sources import chassis, disk, infiniband, network
from agent.sources.context import MOST_DEVICES
from tests.support.fake_host import HostBench, shortly, values


def test_of_two_thousand_disks_and_nics_as_many_are_reported_as_fit(bench: HostBench) -> None:
    """The arrays first; what was left out is reported."""
    disks = [*(f"sd{number}" for number in range(2000)), "md9"]
    for name in disks:
        bench.disk(name)
    bench.psutil.disks = dict.fromkeys(disks, (1, 1, 1))
    counted, info = (bench.read(disk, part) for part in ("counters", "info"))
    assert len(counted.samples) == 7 * MOST_DEVICES
    assert len(info.samples) == MOST_DEVICES
    assert ("dgx_disk_read_bytes_total", "md9") in values(counted)
    assert [(a.reason, a.detail) for a in counted.absences] == [
        (Reason.LEFT_OUT, "1745 of 2001 devices are left out; disk.ignore chooses which")
    ]
    bench.psutil.nics = dict.fromkeys((f"eth{number}" for number in range(2000)), (1, 1))
    counted = bench.read(network, "counters")
    assert len(counted.samples) == 2 * MOST_DEVICES
    assert [a.reason for a in counted.absences] == [Reason.LEFT_OUT]


MANY = 300


def many_ports(bench: HostBench) -> None:
    for number in range(MANY):
        bench.port(f"mlx5_{number}")


def many_arrays(bench: HostBench) -> None:
    for number in range(MANY):
        bench.array(f"md{number}", "raid1", "2", degraded="0")


def many_sensors(bench: HostBench) -> None:
    """Each with an alarm; only the last is raised, and is reported of."""
    for number in range(MANY):
        chip = f"{chassis.CLASS}/hwmon{number}"
        bench.write(f"{chip}/name", "psu")
        bench.write(f"{chip}/temp1_label", "Inlet")
        bench.write(f"{chip}/temp1_input", "21000")
        bench.write(f"{chip}/fan1_alarm", str(int(number == MANY - 1)))


def many_file_systems(bench: HostBench) -> None:
    bench.disk("sda")
    for number in range(MANY):
        bench.write(f"/sys/fs/ext4/dm-{number}/errors_count", "0")


@pytest.mark.parametrize(
    ("make", "source", "part", "most"),
    [
        (many_ports, infiniband, "counters", 3 * MOST_DEVICES),
        (many_ports, infiniband, "errors", len(infiniband.ERROR_FILES) * MOST_DEVICES),
        (many_ports, infiniband, "links", MOST_DEVICES),
        (many_arrays, disk, "arrays", 2 * MOST_DEVICES),
        (many_sensors, chassis, "sensors", MOST_DEVICES),
        (many_sensors, chassis, "alarms", MOST_DEVICES),
        (many_file_systems, disk, "signs", MOST_DEVICES),
    ],
)
def test_of_everything_as_many_are_reported_as_fit(
    bench: HostBench, make: Callable[[HostBench], None], source: ModuleType, part: str, most: int
) -> None:
    make(bench)
    reading = bench.read(source, part)
    assert len(reading.samples) == most
    shown = [absence for absence in reading.absences if absence.reason is Reason.LEFT_OUT]
    assert [absence.detail[:22] for absence in shown] == ["44 of 300 devices are "]
    if part == "alarms":
        assert sum(shortly(reading).values()) == 1
