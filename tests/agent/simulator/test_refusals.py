"""The simulated machines: they answer what real ones answer, and refuse what those refuse."""

import ctypes
import errno
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from agent.hardware.host import Psutil
from agent.simulator import (
    SCENARIOS,
    SYSTEMS,
    SimulatedSystem,
    SimulationError,
    getters,
    mig,
    models,
    parse,
    scenarios,
)
from tests.support.machine_controls import set_mig
from tests.support.nightly import shortly
from tests.support.simulated_machine import (
    ALL_LINKS,
    FABRIC,
    INVALID,
    LOST,
    NO_SYMBOL,
    UNSUPPORTED,
    code,
    field,
    get,
    gpu,
    host_counters,
    start,
)

OF_ARGUMENTS = {"GpuFabricInfo", "PlatformInfo", "MemoryInfo_v2", "ProcessUtilization"}
DEVICE_CALLS: dict[str, tuple[tuple[Any, ...], ...]] = {
    **dict.fromkeys(getters.CALLS.keys() - OF_ARGUMENTS, ((),)),
    "Samples": tuple((kind, 0) for kind in range(10)),
    "MemoryInfo": ((), (pynvml.nvmlMemory_v2,), (7,)),
    "FanSpeed_v2": ((0,), (1,)),
    "Temperature": ((0,), (1,)),
    "TemperatureThreshold": tuple((number,) for number in range(9)),
    "ClockInfo": tuple((kind,) for kind in range(5)),
    "MaxClockInfo": tuple((kind,) for kind in range(5)),
    "PcieThroughput": ((0,), (1,), (2,)),
    "TotalEccErrors": ((0, 0), (1, 1), (2, 0)),
    "RetiredPages": ((0,), (1,), (2,)),
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
                get(machine, name, *extra, index=index)
            except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
                yield name, getattr(error, "value", NO_SYMBOL)
            else:
                yield name, 0


SHORT = ("k40", "dgx-station-v100", "dgx-h200")
"""The oldest library, one without NVSwitches, and one with all that there is."""


@pytest.mark.parametrize("system", shortly(SYSTEMS, SHORT))
def test_every_scenario_of_a_system_answers_or_refuses(system: str) -> None:
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


def test_seams_are_those_of_the_agent() -> None:
    machine, _ = start("dgx-h100")
    seam: Psutil = machine.host.psutil
    times = seam.cpu_times()
    assert times.user == 0
    assert machine.nvml.NVML_ERROR_GPU_IS_LOST == LOST
    assert machine.nvml.NVMLError is pynvml.NVMLError
    with pytest.raises(AttributeError, match="nvmlDeviceSetPersistenceMode"):
        _ = machine.nvml.nvmlDeviceSetPersistenceMode


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("dgx-2", "'dgx-2'"),
        ("dgx-h100:nap", "'nap'"),
        ("dgx-h100:", "''"),
        ("dgx-h100@470", "525"),
        ("k40@580", "470"),
        ("dgx-1-v100@590", "580"),
        ("dgx-1-p100@4x0", "'4x0'"),
        ("gtx-1080:starved-peer", "two GPUs"),
        ("gtx-1080:ecc", "ECC"),
        ("k40:nvlink-down", "NVLink"),
        ("k40:port-degraded", "spec sheet"),
        ("dgx-station-v100:infiniband-saturated", "InfiniBand"),
        ("dgx-1-v100:row-remap", "Ampere"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(spec: str, words: str) -> None:
    with pytest.raises(SimulationError, match=words) as caught:
        parse(spec)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_machine_is_named_by_system_driver_and_scenario() -> None:
    assert parse("dgx-1-p100").driver.startswith("460.")
    assert parse("dgx-1-v100").scenario == "tour"
    assert parse("dgx-1-v100@460.32.03:idle").driver == "460.32.03"
    assert parse("dgx-1-v100@580").driver.startswith("580.")
    assert SCENARIOS[-1] == "tour"


ANSWERED = 0
REFUSED: list[tuple[str, str, tuple[Any, ...], int]] = [
    ("dgx-1-p100", "MemoryInfo", (pynvml.nvmlMemory_v2,), NO_SYMBOL),
    ("dgx-1-p100", "ComputeRunningProcesses", (), NO_SYMBOL),
    ("dgx-1-p100", "ComputeRunningProcesses_v2", (), ANSWERED),
    ("dgx-1-p100", "CurrentClocksEventReasons", (), NO_SYMBOL),
    ("dgx-1-p100", "CurrentClocksThrottleReasons", (), ANSWERED),
    ("dgx-1-p100", "NvLinkRemoteDeviceType", (0,), NO_SYMBOL),
    ("dgx-1-p100@580", "NvLinkRemoteDeviceType", (0,), ANSWERED),
    ("dgx-1-p100", "TotalEnergyConsumption", (), UNSUPPORTED),
    ("dgx-1-v100", "TotalEnergyConsumption", (), ANSWERED),
    ("dgx-1-v100", "MemoryBusWidth", (), NO_SYMBOL),
    ("dgx-1-v100@510", "MemoryBusWidth", (), ANSWERED),
    ("dgx-1-v100@580", "RetiredPages", (0,), ANSWERED),
    ("dgx-1-v100@580", "RemappedRows", (), UNSUPPORTED),
    ("dgx-1-v100@580", "MigMode", (), UNSUPPORTED),
    ("dgx-1-v100", "NvLinkState", (6,), UNSUPPORTED),
    ("dgx-1-v100", "NvLinkState", (18,), UNSUPPORTED),
    ("dgx-a100", "RetiredPages", (0,), UNSUPPORTED),
    ("dgx-h100", "Samples", (7, 0), UNSUPPORTED),
    ("k40", "PcieThroughput", (0,), UNSUPPORTED),
    ("k40", "TotalEccErrors", (0, 0), ANSWERED),
    ("titan-x-maxwell", "PcieThroughput", (0,), ANSWERED),
    ("gtx-1080", "TotalEccErrors", (0, 0), UNSUPPORTED),
    ("gtx-1080", "Serial", (), UNSUPPORTED),
    ("gtx-1080", "FanSpeed_v2", (0,), ANSWERED),
    ("gtx-1080", "FanSpeed_v2", (1,), INVALID),
    ("dgx-h100", "FanSpeed_v2", (0,), UNSUPPORTED),
    ("dgx-1-v100", "NumFans", (), UNSUPPORTED),
    ("dgx-1-v100", "DecoderUtilization", (), ANSWERED),
    ("dgx-h100", "PerformanceState", (), ANSWERED),
    ("gtx-1080", "NvLinkState", (0,), UNSUPPORTED),
]


@pytest.mark.parametrize(("spec", "name", "args", "expected"), REFUSED)
def test_functions_refuse_as_real_ones(
    spec: str, name: str, args: tuple[Any, ...], expected: int
) -> None:
    machine, _ = start(f"{spec}:training", 1.0)
    assert code(getattr(machine.nvml, f"nvmlDeviceGet{name}"), gpu(machine), *args) == expected


FIELDS: list[tuple[str, dict[int, int]]] = [
    ("dgx-1-p100@460", {138: 0, 140: 3, 82: 3, 83: 3, 142: 3, 230: 3, 74: 0}),
    ("dgx-1-p100@580", {138: 3, 185: 3, 269: 0, 251: 3, 274: 3}),
    ("dgx-1-v100@460", {138: 0, 141: 0, 161: 3, 185: 3, 269: 3}),
    ("dgx-1-v100@580", {138: 3, 141: 3, 161: 3, 164: 3, 197: 3, 270: 0}),
    ("dgx-a100", {138: 0, 161: 0, 29: 3, 185: 3, 193: 3, 197: 3, 230: 3}),
    ("dgx-h100", {138: 0, 161: 0, 46: 3, 84: 3, 251: 3, 270: 0}),
    ("dgx-h100@535", {197: 3, 230: 3, 270: 3}),
    ("dgx-h100@580.65.06", {270: 3, 251: 3}),
    ("k40", {74: 3, 91: 3, 83: 3}),
    ("gtx-1080", {3: 3, 29: 3, 82: 3, 83: 3, 91: 3, 74: 0, 138: 3}),
]


@pytest.mark.parametrize(("spec", "expected"), FIELDS)
def test_fields_refuse_as_real_ones(spec: str, expected: dict[int, int]) -> None:
    machine, _ = start(f"{spec}:training", 1.0)
    assert {number: field(machine, number)[0] for number in expected} == expected


def test_scopes_are_minded() -> None:
    machine, _ = start("dgx-h100:nvlink-saturated", 10.0)
    one, whole = field(machine, 138, 3)[1], field(machine, 138, ALL_LINKS)[1]
    assert whole == pytest.approx(18 * one, rel=1e-6)
    assert field(machine, 138, 18)[0] == UNSUPPORTED
    assert field(machine, 161, ALL_LINKS)[0] == UNSUPPORTED


def test_mig_silences_the_whole_gpu() -> None:
    machine, _ = start("dgx-a100@580:training", 2.0)
    set_mig(machine, 0, on=True)
    assert get(machine, "MigMode") == [1, 1]
    for name, args in (
        ("UtilizationRates", ()),
        ("Samples", (1, 0)),
        ("RemappedRows", ()),
        ("PcieThroughput", (0,)),
        ("TotalEccErrors", (1, 0)),
    ):
        call = getattr(machine.nvml, f"nvmlDeviceGet{name}")
        assert code(call, gpu(machine), *args) == UNSUPPORTED
        assert code(call, gpu(machine, 1), *args) == 0
    assert code(machine.nvml.nvmlDeviceGetSamples, gpu(machine), 0, 0) == 0
    assert code(machine.nvml.nvmlDeviceGetTotalEccErrors, gpu(machine), 1, 1) == 0
    hopper, _ = start("dgx-h100:training")
    set_mig(hopper, 0, on=True)
    sample = hopper.nvml.nvmlGpmSampleAlloc()
    assert code(hopper.nvml.nvmlGpmSampleGet, gpu(hopper), sample) == UNSUPPORTED


def test_an_instance_is_asked_no_function_that_its_driver_has_not() -> None:
    for driver, expected in (("460", NO_SYMBOL), ("510", INVALID)):
        machine, _ = start(f"dgx-a100@{driver}:mig", 2.0)
        instance = machine.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(machine), 0)
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


def test_gpm_is_hoppers_alone() -> None:
    ampere, _ = start("dgx-a100:training")
    assert not ampere.nvml.nvmlGpmQueryDeviceSupport(gpu(ampere)).isSupportedDevice
    sample = ampere.nvml.nvmlGpmSampleAlloc()
    assert code(ampere.nvml.nvmlGpmSampleGet, gpu(ampere), sample) == UNSUPPORTED
    volta, _ = start("dgx-1-v100:training")
    assert code(volta.nvml.nvmlGpmQueryDeviceSupport, gpu(volta)) == NO_SYMBOL
