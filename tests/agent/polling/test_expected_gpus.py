"""Expected number of GPUs: the most that were ever seen, kept until a person changes it."""

import os
import time
from pathlib import Path

import pytest

from agent.config.settings import Settings
from agent.hardware.files import RealFiles
from agent.polling.expected_gpus import FILE, ExpectedGpus
from agent.sources import system
from agent.specs.sheets import MachineSpecs, SpecConfig
from tests.support.machine_controls import lose
from tests.support.machines import simulated


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def pci(root: Path, address: str, kind: str = "0x030200", driver: str = "nvidia") -> None:
    folder = f"sys/bus/pci/devices/{address}"
    write(root, f"{folder}/vendor", "0x10de\n")
    write(root, f"{folder}/class", f"{kind}\n")
    if driver:
        (root / folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def expected(root: Path, folder: Path | None = None, *, keeps: bool = True) -> ExpectedGpus:
    return ExpectedGpus(RealFiles(root), folder, keeps=keeps)


def test_the_most_of_three_counts_is_expected(tmp_path: Path) -> None:
    assert expected(tmp_path).most(3, 0.0) == 3
    for number in range(4):
        write(tmp_path, f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information", "")
    assert expected(tmp_path).most(3, 0.0) == 4
    for number in range(4):
        pci(tmp_path, f"0000:0{number}:00.0")
    pci(tmp_path, "0000:05:00.0", driver="")  # it failed, and no driver took it
    pci(tmp_path, "0000:06:00.0", driver="vfio-pci")  # a virtual machine has it
    pci(tmp_path, "0000:07:00.0", kind="0x068000")  # an NVSwitch
    pci(tmp_path, "0000:08:00.0", kind="0x0c0330")
    assert expected(tmp_path).most(3, 0.0) == 5


def test_it_is_kept_across_restarts_until_the_file_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    expected(tmp_path, state).most(4, 0.0)
    deadline = time.monotonic() + 60
    while not (state / FILE).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert expected(tmp_path, state).most(3, 0.0) == 4
    (state / FILE).unlink()
    looking = expected(tmp_path, state, keeps=False)
    assert looking.most(3, 0.0) == 3
    assert not (state / FILE).exists()


@pytest.mark.parametrize("text", ["", "many", "-3", "4.5", "\xff", "99999999999999"])
def test_a_file_that_holds_no_number_is_worth_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    assert expected(tmp_path, tmp_path, keeps=False).most(2, 0.0) == 2


def test_a_gpu_that_fails_at_start_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MachineSpecs, "system_of", lambda *_: None)  # a box without a sheet
    bench = simulated("dgx-station-v100:training")
    lose(bench.machine, 2)
    bench.run(2)
    assert bench.samples.value(system.GPUS) == 3
    assert bench.samples.value(system.GPUS_EXPECTED) == 4


def test_a_person_has_the_last_word() -> None:
    bench = simulated("dgx-station-v100:training", Settings(SpecConfig(gpus=3))).run(2)
    assert bench.samples.value(system.GPUS_EXPECTED) == 3


def test_a_fifo_in_its_place_does_not_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.mkfifo(tmp_path / "state" / FILE)
    assert expected(tmp_path, tmp_path / "state").most(3, 0.0) == 3
