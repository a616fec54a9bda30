"""A small NVML library: what a GPU answers stands in tables, and every answer can be refused."""

# ruff: noqa: N802

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pynvml

from tests.support.frozen_clock import FrozenClock

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, LOST, UNINITIALIZED = 3, 4, 6, 10, 15, 1
GIB = 1 << 30
EPOCH = 1_700_000_000.0
ALL_LINKS = 0xFFFFFFFF
SAMPLE = 0.2  # s
LINKS = 2

SIMPLE: dict[str, Any] = {
    "Name": "Tesla V100-SXM2-32GB",
    "Serial": "0320918000000",
    "VbiosVersion": "88.00.80.00.01",
    "Architecture": 5,
    "PciInfo": SimpleNamespace(busId=b"00000000:06:00.0"),
    "PersistenceMode": 1,
    "UtilizationRates": SimpleNamespace(gpu=40, memory=20),
    "MemoryInfo": SimpleNamespace(total=32 * GIB, used=2 * GIB, free=30 * GIB, reserved=0),
    "PowerUsage": 250_000,
    "EnforcedPowerLimit": 300_000,
    "PowerManagementDefaultLimit": 300_000,
    "TemperatureV": 60,
    "TemperatureThreshold": 90,
    "ClockInfo": 1_290,
    "MaxClockInfo": 1_530,
    "CurrentClocksEventReasons": 0x4,
    "CurrPcieLinkGeneration": 3,
    "MaxPcieLinkGeneration": 3,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "PcieReplayCounter": 7,
    "PcieThroughput": 2_000_000,
    "ComputeRunningProcesses": (SimpleNamespace(pid=41, usedGpuMemory=GIB),),
    "TotalEccErrors": 0,
    "RemappedRows": (1, 0, 0, 0),
    "RetiredPages": (),
    "NvLinkErrorCounter": 0,
    "NvLinkRemoteDeviceType": 2,
    "NvLinkRemotePciInfo": SimpleNamespace(domain=0xFFFFFFFF, bus=0xFFFFFFFF, busId=b""),
}
"""Answers that are the same for every argument; those that depend on it are methods below."""

IN_MIG = ("UtilizationRates", "Samples", "PcieThroughput", "RemappedRows")
BYTES = (138, 139, 140, 141)


@dataclass
class FakeGpu:
    """One GPU: its own answers over `SIMPLE`, field values by id and scope, and its health."""

    uuid: str
    address: int
    answers: dict[str, Any] = field(default_factory=dict)
    fields: dict[tuple[int, int], Any] = field(default_factory=dict)
    errors: dict[str, int | Exception] = field(default_factory=dict)
    mig: bool = False
    duty: float = 0.0  # of the utilisation buffer: share of each 2 s


class FakeNvml:
    """The pynvml functions in use. Bytes grow 1 KiB, energy 250 J, a second of the clock."""

    def __init__(self, clock: FrozenClock, gpus: int = 2, *, gpm: bool = False) -> None:
        self.clock = clock
        self.gpus = [FakeGpu(f"GPU-{n}", 0x1000 * (n + 1)) for n in range(gpus)]
        self.all = {gpu.address: gpu for gpu in self.gpus}
        self.gpm = gpm
        self.driver: str | None = "580.159.03"
        self.running = False
        self.errors: dict[str, int | Exception] = {}
        self.events: list[tuple[int, int]] = []
        self.listened: set[int] = set()
        self.sets = self.newest_set = self.listening = 0
        self.means = {1: 30.0, 2: 20.0, 20: 100.0, 21: 50.0}  # GPM, by id
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):
            return partial(self._answer, name.removeprefix("nvmlDeviceGet"))
        return getattr(pynvml, name)

    def reload(self) -> None:
        """The driver is replaced under the agent: nothing answers until it connects again."""
        self.running = False

    def _check(self, errors: dict[str, int | Exception], name: str) -> None:
        error = errors.get(name)
        if error is not None:
            raise error if isinstance(error, Exception) else pynvml.NVMLError(error)

    def _gpu(self, name: str, handle: int) -> FakeGpu:
        self.calls.append(name)
        if not self.running:
            raise pynvml.NVMLError(UNINITIALIZED)
        gpu = self.all[handle]
        for errors in (self.errors, gpu.errors):
            self._check(errors, "*")
            self._check(errors, name)
        if gpu.mig and name in IN_MIG:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return gpu

    def _answer(self, name: str, handle: int, *args: Any, **_: Any) -> Any:
        gpu = self._gpu(name, handle)
        own: Callable[..., Any] | None = getattr(self, f"_get_{name}", None)
        if name in gpu.answers:
            answer = gpu.answers[name]
            return answer(*args) if callable(answer) else answer
        if own is not None:
            return own(gpu, *args)
        if name not in SIMPLE:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return SIMPLE[name]

    def _get_UUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def _get_MigMode(self, gpu: FakeGpu) -> list[int]:
        return [int(gpu.mig), int(gpu.mig)]

    def _get_TotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        return int(self.clock.monotonic() * 250_000)

    def _get_NvLinkState(self, gpu: FakeGpu, link: int) -> int:
        if link >= LINKS:
            raise pynvml.NVMLError(2)
        return 1

    def _get_Samples(self, gpu: FakeGpu, kind: int, last: int) -> tuple[int, list[Any]]:
        """One a 200 ms, on for the first `duty` of each 2 s, kept for 14 s."""
        if kind != 1:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        end = math.floor(self.clock.monotonic() / SAMPLE + 1e-6)
        samples = []
        for n in range(end - 70, end + 1):
            stamp = int((EPOCH + n * SAMPLE) * 1e6)
            value = pynvml.c_nvmlValue_t(uiVal=100 if n % 10 < gpu.duty * 10 - 1e-6 else 0)
            if stamp > last:
                samples.append(pynvml.c_nvmlSample_t(stamp, value))
        if not samples:
            raise pynvml.NVMLError(NOT_FOUND)
        return 1, samples

    def _get_FieldValues(self, gpu: FakeGpu, asked: Iterable[tuple[int, int]]) -> list[Any]:
        return [self._field(gpu, number, scope) for number, scope in asked]

    def _field(self, gpu: FakeGpu, number: int, scope: int) -> Any:
        entry = pynvml.c_nvmlFieldValue_t(fieldId=number, scopeId=scope, valueType=3)
        value = gpu.fields.get((number, scope))
        if value is None and number in BYTES:
            value = int(self.clock.monotonic())
        if value is None:
            entry.nvmlReturn = NOT_SUPPORTED
        else:
            entry.value.ullVal = value
        return entry

    def nvmlInit(self) -> None:
        self._check(self.errors, "nvmlInit")
        if self.driver is None:
            raise pynvml.NVMLError(9)
        self.running = True

    def nvmlShutdown(self) -> None:
        self.running = False

    def nvmlSystemGetDriverVersion(self) -> str | None:
        return self.driver

    def nvmlSystemGetNVMLVersion(self) -> str:
        return f"13.{self.driver}"

    def nvmlDeviceGetCount(self) -> int:
        if not self.running:
            raise pynvml.NVMLError(UNINITIALIZED)
        self._check(self.errors, "nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        gpu = self.gpus[index]
        return self._gpu("HandleByIndex", gpu.address).address

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self) -> dict[str, float]:
        return {}

    def nvmlGpmSampleGet(self, handle: int, sample: dict[str, float]) -> None:
        self._gpu("GpmSampleGet", handle)
        sample["at"] = self.clock.monotonic()

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        slots = [SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0) for _ in range(98)]
        return SimpleNamespace(metrics=slots)

    def nvmlGpmMetricsGet(self, question: Any) -> None:
        assert question.sample2["at"] > question.sample1["at"]
        for slot in question.metrics[: question.numMetrics]:
            slot.value = self.means.get(slot.metricId, 0.0)
            slot.nvmlReturn = 0 if slot.metricId in self.means else NOT_SUPPORTED

    def nvmlEventSetCreate(self) -> int:
        self._check(self.errors, "nvmlEventSetCreate")
        self.sets += 1
        self.newest_set += 1
        return self.newest_set

    def nvmlEventSetFree(self, events: int) -> None:
        self.sets -= 1

    def nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: int) -> None:
        self._gpu("RegisterEvents", handle)
        if events != self.listening:  # a set of operational events listens to none by this call
            self.listening, self.listened = events, set()
        self.listened.add(handle)

    def nvmlEventSetWait(self, events: int, milliseconds: int) -> Any:
        if not self.running:
            raise pynvml.NVMLError(UNINITIALIZED)
        if not self.events:
            raise pynvml.NVMLError(TIMEOUT)
        device, code = self.events.pop(0)
        return SimpleNamespace(device=ctypes.c_void_p(device), eventType=8, eventData=code)
