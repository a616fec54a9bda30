"""A simulated machine with secrets on its host, and every question that is put to it."""

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from agent.hardware.files import FileTree
from agent.hardware.host import Host
from agent.replay.answers import encode
from agent.replay.player import Tape, TapePlayer
from agent.replay.recorder import TapeRecorder
from agent.simulator import SimulatedSystem
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import first_gpus


def lines_of(tape: Path) -> list[Any]:
    """The lines of a tape, decoded."""
    return [json.loads(line) for line in gzip.decompress(tape.read_bytes()).splitlines()]


TOKEN = "hunter2"
HOST = "dgx-secret-17"
SERVER = "filer.corp.example"
TOTAL = 0xFFFFFFFF
GPM_IDS = (1, 2, 3, 5, 10, 20, 21, 60, 61)
FIELDS = [186, 190, 74, 75, (138, TOTAL), (139, TOTAL), (140, 0), 82, 193]
GETTERS = (
    *("Name", "VbiosVersion", "Architecture", "PciInfo", "PersistenceMode", "MigMode"),
    *("UtilizationRates", "MemoryBusWidth", "PowerUsage", "EnforcedPowerLimit"),
    "PowerManagementDefaultLimit",
    *("TotalEnergyConsumption", "CurrentClocksEventReasons"),
    *("CurrPcieLinkGeneration", "PcieReplayCounter", "RemappedRows"),
    *("ComputeRunningProcesses", "GraphicsRunningProcesses", "RetiredPagesPendingStatus"),
)


def machine(clock: Any, count: int = 2) -> SimulatedSystem:
    """`count` GPUs whose driver has only an older version of one function."""
    made = SimulatedSystem(first_gpus("dgx-h200@580.159.03:training", count), clock)
    made.driver.fail("nvmlDeviceGetGraphicsRunningProcesses", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return made


_EIGHT = machine(FrozenClock(), 8)
_EIGHT.nvml.nvmlInit()
UUIDS = [gpu.uuid for gpu in _EIGHT.gpus]
SERIALS = [_EIGHT.nvml.nvmlDeviceGetSerial(_EIGHT.nvml.handle(n)) for n in range(8)]


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
    return Host(files=FakeFiles(clock), psutil=machine(clock).host.psutil)


class MachineQuestions:
    """Asks everything a source would, the same way on real, recorded and taped machines."""

    def __init__(self, nvml: Any, host: Any, count: Any = 2) -> None:
        self.nvml, self.host, self.count = nvml, host, count
        self.last_seen: dict[Any, Any] = {}
        nvml.nvmlInit()
        self.pairs = {n: [nvml.nvmlGpmSampleAlloc() for _ in range(2)] for n in range(count)}
        self.handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)]

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

    def gpm(self, index: Any) -> Any:
        pair = self.pairs[index]
        self.nvml.nvmlGpmSampleGet(self.handles[index], pair[0])
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = 1, len(GPM_IDS) + 1
        request.sample2, request.sample1 = pair
        for metric, number in zip(request.metrics, [*GPM_IDS, 999], strict=False):
            metric.metricId = number
        pair.reverse()
        self.nvml.nvmlGpmMetricsGet(request)
        metrics = request.metrics[: request.numMetrics]
        return [(m.nvmlReturn, m.nvmlReturn or f"{m.value:.6g}") for m in metrics]

    def gpu(self, index: Any) -> Any:
        nvml, handle = self.nvml, self.handles[index]
        seen = [self.try_to(getattr(nvml, f"nvmlDeviceGet{name}"), handle) for name in GETTERS]
        return [
            *seen,
            self.try_to(nvml.nvmlDeviceGetMemoryInfo, handle),
            self.try_to(nvml.nvmlDeviceGetMemoryInfo, handle, version=nvml.nvmlMemory_v2),
            self.try_to(nvml.nvmlDeviceGetTemperature, handle, 0),
            self.try_to(lambda: nvml.nvmlDeviceGetHandleByIndex(index) and None),
            self.try_to(self.fields, handle),
            self.try_to(self.samples, handle, 0, (index, 0)),
            self.try_to(self.samples, handle, 1, (index, 1)),
            self.try_to(nvml.nvmlGpmQueryDeviceSupport, handle),
            self.try_to(self.gpm, index),
        ]

    def all(self) -> Any:
        files, psutil = self.host.files, self.host.psutil
        return [
            self.nvml.nvmlSystemGetDriverVersion(),
            [self.gpu(index) for index in range(self.count)],
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
    recorded = machine(clock, count)
    recorder = TapeRecorder(recorded.nvml, fake_host(clock), clock)
    questions = MachineQuestions(recorder.nvml, recorder.host, count)
    seen = []
    for tick in range(ticks):
        if tick == lose_at:
            recorded.lose(1)
        seen.append(questions.all())
        if secrets and tick == 0:
            ask_for_secrets(recorder)
        clock.advance(step)
    recorder.write(path)
    return seen


def ask_for_secrets(of: Any) -> Any:
    handles = [of.nvml.nvmlDeviceGetHandleByIndex(n) for n in range(2)]
    paths = ("/proc/mounts", "/etc/motd")
    with suppress(FileNotFoundError):  # a tape does not have it
        of.host.files.read("/proc/77/cmdline")
    return [
        [of.nvml.nvmlDeviceGetUUID(handle) for handle in handles],
        [of.nvml.nvmlDeviceGetSerial(handle) for handle in handles],
        [of.host.files.read(path) for path in paths],
        of.host.files.names("/jobs")[0],
    ]


def replay(path: Any, ticks: Any = 10, step: Any = 1.0, count: Any = 2) -> Any:
    clock = FrozenClock(epoch=5.0)
    clock.advance(1234.5)
    player = TapePlayer(Tape(path), clock)
    questions = MachineQuestions(player.nvml, player.host, count)
    seen = []
    for _ in range(ticks):
        seen.append(questions.all())
        clock.advance(step)
    return seen
