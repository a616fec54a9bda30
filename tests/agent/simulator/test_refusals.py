"""The simulated machines: they answer what real ones answer, and refuse what those refuse."""

import ctypes
import errno
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.errors import BadInput
from agent.simulator import (
    SCENARIOS,
    SYSTEMS,
    SimulatedSystem,
    driver,
    mig,
    models,
    parse,
    scenarios,
)
from tests.support import simulated_machine
from tests.support.nightly import shortly
from tests.support.simulated_machine import ALL_LINKS, FABRIC, NO_SYMBOL, code, host_counters, start

CASES = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text("utf-8"))

OF_ARGUMENTS = {"GpuFabricInfo", "PlatformInfo", "MemoryInfo_v2", "ProcessUtilization"}
DEVICE_CALLS: dict[str, tuple[tuple[Any, ...], ...]] = {
    **{
        name: tuple(product(*([*valid, max(valid) + 1] for valid in call.takes)))
        for name, call in driver.NVML.calls.items()
        if name not in OF_ARGUMENTS
    },
    "Samples": tuple((kind, 0) for kind in range(10)),
    "MemoryInfo": ((), (pynvml.nvmlMemory_v2,), (7,)),
    "FieldValues": (([(i, s) for i in range(330) for s in (0, 2, 20, ALL_LINKS)],),),
    "NvLinkState": tuple((link,) for link in (0, 5, 17, 18)),
    "NvLinkRemotePciInfo": tuple((link,) for link in (0, 2, 17, 18)),
    "NvLinkRemoteDeviceType": tuple((link,) for link in (0, 2, 17, 18)),
    "NvLinkErrorCounter": tuple((link, kind) for link in (0, 1, 18) for kind in range(6)),
    "GpuFabricInfoV": ((),),
}


def ask_everything(machine: SimulatedSystem, index: int) -> Iterator[tuple[str, int]]:
    """Every function of one GPU with right and wrong arguments."""
    for name, variants in DEVICE_CALLS.items():
        for args in variants:
            extra = (ctypes.byref(FABRIC()),) if name == "GpuFabricInfoV" else args
            try:
                simulated_machine.get(machine, name, *extra, index=index)
            except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
                yield name, getattr(error, "value", NO_SYMBOL)
            else:
                yield name, 0


SHORT = ("k40", "dgx-station-v100", "dgx-h200")
"""The oldest library, one without NVSwitches, and one with all that there is."""


@pytest.mark.parametrize("system", shortly(SYSTEMS, SHORT))
def test_every_scenario_of_a_system_answers_or_refuses(system: str) -> None:
    machine, _ = start(f"{system}:training")
    for name, fault in (scenarios.SCENARIOS | scenarios.FAULTS).items():
        for path in fault.set if not scenarios.missing(machine.system, name) else ():
            machine._part(path)  # raises AttributeError for a misspelt name
    for name in scenarios.possible(models.ALL[system]):
        machine, clock = start(f"{system}:{name}", 0.3)
        before = host_counters(machine)
        clock.advance(9.7)
        codes = dict(ask_everything(machine, 0))
        if name not in ("driver-hang", "gpu-lost", "gpu-slow"):
            assert codes["PowerUsage"] == codes["UUID"] == codes["FieldValues"] == 0
            assert list(ask_everything(machine, machine.nvml.nvmlDeviceGetCount() - 1))
        for old, now in zip(before, host_counters(machine), strict=True):
            assert all(b <= a for d in old for b, a in zip(old[d], now[d], strict=True))
        walk(machine, "/")


def walk(machine: SimulatedSystem, path: str) -> None:
    """Read every file of a machine."""
    files = machine.host.files
    for name in files.names(path):
        below = f"{path.rstrip('/')}/{name}"
        try:
            files.read(below)
        except OSError as error:
            if error.errno == errno.EISDIR:
                walk(machine, below)
            elif error.errno != errno.EINVAL:  # the speed of a loopback
                assert files.link(below)


@pytest.mark.parametrize(("spec", "words"), CASES["refused"])
def test_what_cannot_be_is_refused_in_one_sentence(spec: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        parse(spec)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_machine_is_named_by_system_driver_and_scenario() -> None:
    assert parse("dgx-1-p100").system.driver.startswith("460.")
    assert parse("dgx-1-v100").scenario == "tour"
    assert parse("dgx-1-v100@460.32.03:idle").system.driver == "460.32.03"
    assert parse("dgx-1-v100@580").system.driver.startswith("580.")
    assert SCENARIOS[-1] == "tour"


def test_an_instance_is_asked_no_function_that_its_driver_has_not() -> None:
    for branch, expected in (("460", NO_SYMBOL), ("510", simulated_machine.INVALID)):
        machine, _ = start(f"dgx-a100@{branch}:mig", 2.0)
        gpu = simulated_machine.gpu(machine)
        instance = machine.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        assert code(machine.nvml.nvmlDeviceGetMemoryBusWidth, instance) == expected


MIG_PROFILES = {
    ("A100 40 GB", 40960): "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    ("H100 80 GB", 81559): "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    ("H200", 143771): "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    ("B200", 183359): "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
    ("B300", 275040): "1g.34gb 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb",
}
"""Names by GPU, and MiB that its driver shows: NVIDIA's MIG user guide, supported profiles. B300:
GPU Operator, release notes of 25.10."""


@pytest.mark.parametrize("known", MIG_PROFILES, ids=lambda known: known[0])
def test_mig_profiles_are_named_as_published(known: tuple[str, int]) -> None:
    published = MIG_PROFILES[known].split()
    for name, eighths in zip(published, (1, 2, 2, 4, 4, 8), strict=True):
        assert mig.profile_name(known[1] << 20, int(name[0]), eighths) == name
