"""A small machine whose answers follow from the clock, and every question that is put to it."""

# ruff: noqa: N802

import ctypes
from collections import namedtuple
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pynvml

from agent.hardware.files import FileTree
from agent.hardware.host import Host
from agent.replay.answers import encode
from agent.replay.tape import Tape, TapePlayer, TapeRecorder
from tests.support.frozen_clock import FrozenClock

TOKEN = "hunter2"
UUIDS = [f"GPU-b56b112d-764f-9d58-2f06-dceb458a1f{n:02x}" for n in range(8)]
SERIALS = [f"17530240314{n:02d}" for n in range(8)]
HOST = "dgx-secret-17"
SERVER = "filer.corp.example"
TOTAL = 0xFFFFFFFF
GPM_IDS = (1, 2, 3, 5, 10, 20, 21, 60, 61)
FIELDS = [186, 187, 74, 75, (138, TOTAL), (139, TOTAL), (140, 0), 82, 193]
GETTERS = (
    *("Name", "VbiosVersion", "Architecture", "PciInfo", "PersistenceMode", "MigMode"),
    *("UtilizationRates", "MemoryBusWidth", "PowerUsage", "EnforcedPowerLimit"),
    "PowerManagementDefaultLimit",
    *("TotalEnergyConsumption", "MarginTemperature", "CurrentClocksEventReasons"),
    *("CurrPcieLinkGeneration", "PcieReplayCounter", "RemappedRows"),
    *("ComputeRunningProcesses", "RetiredPagesPendingStatus"),
)


def refused(code: Any) -> Any:
    raise pynvml.NVMLError(code)


class FakeNvml:
    """A library of `count` GPUs whose answers follow from the clock."""

    def __init__(self, clock: Any, count: Any = 2) -> None:
        self.clock = clock
        self.count = count
        self.handles = [
            ctypes.cast(ctypes.c_void_p(0x1000 + n), pynvml.c_nvmlDevice_t) for n in range(count)
        ]
        self.lost: set[int] = set()
        self.events: list[Any] = []
        self.samples: dict[int, Any] = {}
        self.next_sample = 0x9000

    def __getattr__(self, name: Any) -> Any:
        if not name.startswith("nvml") or name in {"nvmlMemory_v2", "nvmlGpuFabricInfo_v2"}:
            return getattr(pynvml, name)
        getter = name.removeprefix("nvmlDeviceGet")
        if getter not in GETTERS:
            raise AttributeError(name)
        return lambda handle: self.simple(getter, self.index(handle))

    def index(self, handle: Any) -> Any:
        index = ctypes.addressof(handle.contents) - 0x1000
        return refused(15) if index in self.lost else index

    @property
    def now(self) -> Any:
        return self.clock.monotonic()

    def simple(self, getter: Any, index: Any) -> Any:
        values = {
            "Name": "NVIDIA H200",
            "VbiosVersion": "96.00.DA.00.0C",
            "PowerUsage": 100_000 + 1000 * index + int(self.now * 977) % 600_000,
            "TotalEnergyConsumption": int(self.now * 300_000) + index,
            "MigMode": [0, 0],
            "RemappedRows": (0, index, 0, 0),
            "UtilizationRates": pynvml.c_nvmlUtilization_t(int(self.now * 7) % 100, 3),
            "PciInfo": pynvml.nvmlPciInfo_t(
                bus=index, domain=0, busId=b"00000000:0%x:00.0" % index
            ),
            "ComputeRunningProcesses": [
                pynvml.nvmlFriendlyObject(
                    {"pid": 40 + index, "usedGpuMemory": None, "gpuInstanceId": 7}
                )
            ],
        }
        if getter == "RetiredPagesPendingStatus":
            refused(3)
        return values.get(getter, 5)

    def nvmlInit(self) -> Any:
        return None

    def nvmlShutdown(self) -> Any:
        return None

    def nvmlSystemGetDriverVersion(self) -> Any:
        return "580.159.03"

    def nvmlSystemGetNVMLVersion(self) -> Any:
        return "13.580.159.03"

    def nvmlDeviceGetCount(self) -> Any:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: Any) -> Any:
        self.index(self.handles[index])
        return self.handles[index]

    def nvmlDeviceGetUUID(self, handle: Any) -> Any:
        return UUIDS[self.index(handle)]

    def nvmlDeviceGetSerial(self, handle: Any) -> Any:
        return SERIALS[self.index(handle)]

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any) -> Any:
        raise pynvml.NVMLLibraryMismatchError("too old")

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: Any = None) -> Any:
        used = int(self.now) * 2**20 + self.index(handle)
        if version is None:
            return pynvml.c_nvmlMemory_t(total=2**37, used=used)
        return pynvml.c_nvmlMemory_v2_t(version, 2**37, 2**29, 2**36, used)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any) -> Any:
        return 40 + self.index(handle) + sensor + int(self.now) % 5

    def nvmlDeviceGetFieldValues(self, handle: Any, wanted: Any) -> Any:
        index = self.index(handle)
        values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        for value, field in zip(values, wanted, strict=True):
            value.fieldId, value.scopeId = field if isinstance(field, tuple) else (field, 0)
            value.timestamp = int(self.clock.time() * 1e6)
            value.valueType = {82: 1, 193: 5, 186: 1}.get(value.fieldId, 3)
            if value.fieldId == 187:
                value.nvmlReturn = 3
            elif value.fieldId == 193:
                value.value.siVal = -8 - index
            else:
                value.value.ullVal = int(self.now * 1e6) * value.fieldId + index
        return values

    def nvmlDeviceGetSamples(self, handle: Any, sampling: Any, last_seen: Any) -> Any:
        index = self.index(handle)
        step, depth = {0: (20_000, 119), 1: (200_000, 71)}[sampling]
        end = int(self.clock.time() * 1e6) // step
        stamps = [n * step + 3 for n in range(end - depth, end) if n * step + 3 > last_seen]
        if not stamps:
            refused(6)
        rows = (pynvml.c_nvmlSample_t * len(stamps))()
        for row, stamp in zip(rows, stamps, strict=True):
            row.timeStamp = stamp
            row.sampleValue.uiVal = stamp // step * 7919 % 40_000 + index
        return 1, list(rows)

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Any, reference: Any) -> Any:
        info = reference._obj
        info.state, info.cliqueId = 3, self.index(handle) + 1
        info.clusterUuid[:] = bytes(range(1, 17))
        return 0

    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:
        return pynvml.c_nvmlGpmSupport_t(1, int(self.index(handle) >= 0))

    def nvmlGpmSampleAlloc(self) -> Any:
        self.next_sample += 1
        return ctypes.cast(ctypes.c_void_p(self.next_sample), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> Any:
        del self.samples[ctypes.addressof(sample.contents)]

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> Any:
        self.samples[ctypes.addressof(sample.contents)] = self.index(handle), self.now
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        index, at = self.samples[ctypes.addressof(request.sample2.contents)]
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = 3 if metric.metricId == 999 else 0
            metric.value = 10 * index + at / 7 * metric.metricId
        return request

    def nvmlEventSetCreate(self) -> Any:
        return object()

    def nvmlEventSetFree(self, events: Any) -> Any:
        return None

    def nvmlDeviceRegisterEvents(self, handle: Any, types: Any, events: Any) -> Any:
        self.index(handle)

    def nvmlEventSetWait(self, events: Any, timeout: Any) -> Any:
        if not self.events:
            refused(10)
        index, xid = self.events.pop(0)
        return pynvml.c_nvmlEventData_t(self.handles[index], 8, xid, 0, 0)


Disk = namedtuple(
    "Disk",
    "read_bytes write_bytes busy_time read_count write_count read_time write_time",
    defaults=(0, 0, 0, 0),
)


CpuTimes = namedtuple("CpuTimes", "user idle")


class FakePsutil:
    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def disk_io_counters(self, perdisk: Any = False, nowrap: Any = True) -> Any:
        moved = int(self.clock.monotonic() * 2.5e9)
        return {f"nvme{n}n1": Disk(moved + n, n, n) for n in range(10)}

    def net_io_counters(self, pernic: Any = False, nowrap: Any = True) -> Any:
        moved = int(self.clock.monotonic() * 1e9)
        return {"eth0": SimpleNamespace(bytes_sent=moved, bytes_recv=0)}

    def cpu_times(self) -> Any:
        return CpuTimes(self.clock.monotonic(), 7.5)


class FakeFiles(FileTree):
    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def read(self, path: Any) -> Any:
        texts = {
            "/proc/sys/kernel/hostname": f"{HOST}\n",
            "/proc/mounts": f"{SERVER}:/x/data /data nfs4 "
            "rw,clientaddr=10.9.8.7,addr=10.9.8.6 0 0\n"
            f"//{SERVER}/share /smb cifs rw 0 0\n/dev/md1 /raid ext4 rw 0 0\n",
            "/proc/loadavg": f"{self.clock.monotonic():.2f} 1/2 77\n",
            "/proc/77/cmdline": f"python\0--token={TOKEN}\0",
            "/etc/motd": f"python\0--host={HOST}\0--gpu={UUIDS[1]}\0--sn={SERIALS[0]}\0",
            "/sys/class/net/eth0/address": "de:ad:be:ef:00:01\n",
        }
        if path == "/proc/denied":
            raise PermissionError(13, "Permission denied", path)
        if path not in texts or (path == "/proc/loadavg" and self.clock.monotonic() > 6):
            raise FileNotFoundError(2, "No such file or directory", path)
        return texts[path]

    def names(self, path: Any) -> Any:
        return [f"job-{HOST}", str(int(self.clock.monotonic()))]

    def link(self, path: Any) -> Any:
        return "../../devices/pci0000:00"


def fake_host(clock: Any) -> Any:
    return Host(files=FakeFiles(clock), psutil=FakePsutil(clock))


class MachineQuestions:
    """Asks everything a source would, the same way on real, recorded and taped machines."""

    def __init__(self, nvml: Any, host: Any, count: Any = 2) -> None:
        self.nvml, self.host, self.count = nvml, host, count
        self.last_seen: dict[Any, Any] = {}
        nvml.nvmlInit()
        self.events = nvml.nvmlEventSetCreate()
        self.pairs = {n: [nvml.nvmlGpmSampleAlloc() for _ in range(2)] for n in range(count)}
        self.handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)]
        for handle in self.handles:
            nvml.nvmlDeviceRegisterEvents(handle, 8, self.events)

    def try_to(self, ask: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return encode(ask(*args, **keywords))
        except pynvml.NVMLError as error:
            return type(error).__name__
        except pynvml.NVMLLibraryMismatchError:
            return "mismatch"
        except OSError as error:
            return type(error).__name__, error.errno

    def fields(self, handle: Any) -> Any:
        values = self.nvml.nvmlDeviceGetFieldValues(handle, FIELDS)
        return [
            (v.fieldId, v.scopeId, v.nvmlReturn, v.nvmlReturn or (v.valueType, v.value.ullVal))
            for v in values
        ]

    def samples(self, handle: Any, sampling: Any, key: Any) -> Any:
        kind, rows = self.nvml.nvmlDeviceGetSamples(handle, sampling, self.last_seen.get(key, 0))
        self.last_seen[key] = rows[-1].timeStamp
        return kind, [(row.timeStamp, row.sampleValue.uiVal) for row in rows]

    def fabric(self, handle: Any) -> Any:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        self.nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return info.state, info.cliqueId

    def gpm(self, index: Any) -> Any:
        pair = self.pairs[index]
        for sample in pair:
            self.nvml.nvmlGpmSampleGet(self.handles[index], sample)
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = 1, len(GPM_IDS) + 1
        request.sample1, request.sample2 = pair
        for metric, number in zip(request.metrics, [*GPM_IDS, 999], strict=False):
            metric.metricId = number
        self.nvml.nvmlGpmMetricsGet(request)
        metrics = request.metrics[: request.numMetrics]
        return [(m.nvmlReturn, m.nvmlReturn or float(f"{m.value:.6g}")) for m in metrics]

    def event(self) -> Any:
        event = self.nvml.nvmlEventSetWait(self.events, 0)
        return encode(event.device.index), event.eventType, event.eventData

    def gpu(self, index: Any) -> Any:
        nvml, handle = self.nvml, self.handles[index]
        seen = [self.try_to(getattr(nvml, f"nvmlDeviceGet{name}"), handle) for name in GETTERS]
        return [
            *seen,
            self.try_to(nvml.nvmlDeviceGetMemoryInfo, handle),
            self.try_to(nvml.nvmlDeviceGetMemoryInfo, handle, version=nvml.nvmlMemory_v2),
            self.try_to(nvml.nvmlDeviceGetComputeRunningProcesses_v2, handle),
            self.try_to(nvml.nvmlDeviceGetTemperature, handle, 0),
            self.try_to(nvml.nvmlDeviceGetHandleByIndex, index) and None,
            self.try_to(self.fields, handle),
            self.try_to(self.samples, handle, 0, (index, 0)),
            self.try_to(self.samples, handle, 1, (index, 1)),
            self.try_to(self.fabric, handle),
            self.try_to(nvml.nvmlGpmQueryDeviceSupport, handle),
            self.try_to(self.gpm, index),
        ]

    def all(self) -> Any:
        files, psutil = self.host.files, self.host.psutil
        return [
            self.nvml.nvmlSystemGetDriverVersion(),
            [self.gpu(index) for index in range(self.count)],
            self.try_to(self.event),
            [self.try_to(files.read, path) for path in ("/proc/loadavg", "/proc/denied", "/no")],
            self.try_to(files.link, "/sys/x"),
            self.try_to(psutil.disk_io_counters, perdisk=True, nowrap=True),
            self.try_to(psutil.net_io_counters, pernic=True),
            self.try_to(psutil.cpu_times),
        ]


def record(
    path: Any,
    *,
    ticks: Any = 10,
    step: Any = 1.0,
    count: Any = 2,
    lose_at: Any = None,
    secrets: Any = False,
) -> Any:
    """A tape of `ticks` ticks, and what was seen at each."""
    clock = FrozenClock()
    nvml = FakeNvml(clock, count)
    recorder = TapeRecorder(nvml, fake_host(clock), clock)
    questions = MachineQuestions(recorder.nvml, recorder.host, count)
    seen = []
    for tick in range(ticks):
        if tick == lose_at:
            nvml.lost.add(1)
            nvml.events.append((1, 79))
        seen.append(questions.all())
        if secrets and tick == 0:
            ask_for_secrets(recorder)
        clock.advance(step)
    recorder.write(path)
    return seen


def ask_for_secrets(machine: Any) -> Any:
    handles = [machine.nvml.nvmlDeviceGetHandleByIndex(n) for n in range(2)]
    paths = ("/proc/mounts", "/etc/motd")
    with suppress(FileNotFoundError):  # a tape does not have it
        machine.host.files.read("/proc/77/cmdline")
    return [
        [machine.nvml.nvmlDeviceGetUUID(handle) for handle in handles],
        [machine.nvml.nvmlDeviceGetSerial(handle) for handle in handles],
        [machine.host.files.read(path) for path in paths],
        machine.host.files.names("/jobs")[0],
    ]


def replay(path: Any, ticks: Any = 10, step: Any = 1.0, count: Any = 2) -> Any:
    clock = FrozenClock(epoch=5.0)
    clock.advance(1234.5)
    player = TapePlayer(Tape.load(path), clock)
    questions = MachineQuestions(player.nvml, player.host, count)
    seen = []
    for _ in range(ticks):
        seen.append(questions.all())
        clock.advance(step)
    return seen
