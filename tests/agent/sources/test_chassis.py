"""The chassis' own sensors on fixture trees: those of the box are read, all others left alone."""

import errno
from pathlib import Path

import pytest

from agent.faults.findings import findings
from agent.model import Reason, Snapshot
from agent.sources import chassis
from tests.support.fake_host import HostBench, reasons, values

POWER, TEMPERATURE = chassis.POWER.name, chassis.TEMPERATURE.name


@pytest.fixture
def bench(tmp_path: Path) -> HostBench:
    return HostBench(tmp_path)


def chip(bench: HostBench, number: int, name: str, **files: str) -> None:
    for file, text in {"name": name, **files}.items():
        bench.write(f"{chassis.CLASS}/hwmon{number}/{file}", text)


def test_a_power_meter_and_the_air_are_read_in_base_units(bench: HostBench) -> None:
    chip(bench, 0, "power_meter", power1_average="2345000000", power1_average_max="9")
    chip(bench, 1, "board", temp1_input="21500", temp1_label="Inlet Temp", temp2_input="40000")
    assert values(bench.read(chassis, "sensors")) == {
        (POWER, "power_meter: power1"): 2345.0,
        (TEMPERATURE, "board: Inlet Temp"): 21.5,
    }


def test_the_meter_of_a_power_machine_is_known_by_its_label(bench: HostBench) -> None:
    chip(bench, 3, "ibmpowernv", power1_input="1800000000", power1_label="System")
    chip(bench, 4, "ibmpowernv", power1_input="90000000", power1_label="CPU 0")
    assert values(bench.read(chassis, "sensors")) == {(POWER, "ibmpowernv: System"): 1800.0}


def test_cpus_disks_and_cards_are_no_chassis(bench: HostBench) -> None:
    chip(bench, 0, "coretemp", temp1_input="60000", temp1_label="Package id 0")
    chip(bench, 1, "nvme", temp1_input="45000", temp1_label="Composite")
    chip(bench, 2, "nvme", temp1_input="45000", temp1_label="Ambient")
    chip(bench, 3, "pmbus", power1_input="400000000", power1_label="pout1")
    reading = bench.read(chassis, "sensors")
    assert reading.samples == ()
    assert set(reasons(reading.absences).items()) == {
        ((POWER,), Reason.MISSING),
        ((TEMPERATURE,), Reason.MISSING),
    }


def test_a_meter_that_gives_a_mean_and_a_reading_is_reported_once(bench: HostBench) -> None:
    chip(bench, 0, "power_meter", power1_average="1000000", power1_input="9000000")
    assert values(bench.read(chassis, "sensors")) == {(POWER, "power_meter: power1"): 1.0}


def test_two_meters_of_one_name_are_numbered_in_the_order_of_the_kernel(bench: HostBench) -> None:
    chip(bench, 10, "power_meter", power1_average="2000000")
    chip(bench, 9, "power_meter", power1_average="1000000")
    chip(bench, 8, "power_meter", power1_average="3000000", power1_label="power1 2")
    assert values(bench.read(chassis, "sensors")) == {
        (POWER, "power_meter: power1 2"): 3.0,
        (POWER, "power_meter: power1"): 1.0,
        (POWER, "power_meter: power1 3"): 2.0,
    }


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"power1_average": "0"}, Reason.UNKNOWN),
        ({"power1_average": "-1"}, Reason.UNKNOWN),
        ({"power1_average": "much"}, Reason.UNKNOWN),
        ({"temp1_label": "Inlet", "temp1_input": "-128000"}, Reason.UNKNOWN),
    ],
)
def test_what_is_no_reading_is_absent_and_never_0(
    bench: HostBench, files: dict[str, str], reason: Reason
) -> None:
    chip(bench, 0, "power_meter", **files)
    reading = bench.read(chassis, "sensors")
    assert reading.samples == ()
    assert reason in {absence.reason for absence in reading.absences}


def test_a_meter_for_root_only_is_denied_and_nothing_that_check_calls_wrong(
    bench: HostBench,
) -> None:
    chip(bench, 0, "power_meter", power1_average="1000000")
    bench.tree.errors["power1_average"] = errno.EACCES
    reading = bench.read(chassis, "sensors")
    assert reasons(reading.absences)[POWER, "power_meter: power1"] is Reason.DENIED
    snapshot = Snapshot(1, reading.at, 0.0, {reading.key: reading})
    assert list(findings(snapshot)) == []


def test_a_chip_that_arrives_is_met(bench: HostBench) -> None:
    assert bench.read(chassis, "sensors").samples == ()
    chip(bench, 0, "power_meter", power1_average="1000000")
    assert values(bench.read(chassis, "sensors")) == {(POWER, "power_meter: power1"): 1.0}


def test_what_stays_is_looked_for_once(bench: HostBench) -> None:
    chip(bench, 0, "power_meter", power1_average="1000000")
    bench.read(chassis, "sensors")
    bench.tree.asked.clear()
    bench.read(chassis, "sensors")
    assert bench.tree.asked == [f"{chassis.CLASS}/hwmon0/power1_average"]
