"""What the driver tells of every GPU, at rates that no agent would read it at. numpy and pynvml.

Arrays of GPU i; the first column is CLOCK_MONOTONIC (s):
- `power{i}` the 20 ms samples (s, mW); `utilization{i}`, `memory_utilization{i}` the driver's own
  samples (s, %). Gapless.
- `gpm{i}` (start s, end s, then GPM_IDS): windows of 250 ms, and within one second of each five
  also of 62.5 ms.
- `nvlink{i}` (s, payload received, sent, wire received, sent: KiB since the driver was loaded).
- `state{i}` (s, then STATE_COLUMNS).
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pynvml

GPM_IDS = (1, 2, 3, 4, 5, 10, 12, 13, 20, 21, 60, 61)
"""Graphics, SM, occupancy, integer, tensor, DRAM, FP32, FP16 (%); PCIe sent, received; NVLink
received, sent (1,024,000 bytes/s)."""

NVLINK_FIELDS = (139, 138, 141, 140)  # DATA_RX, DATA_TX, RAW_RX, RAW_TX
ALL_LINKS = 0xFFFFFFFF
STATE_COLUMNS = (
    *("utilization", "memory_utilization", "sm_mhz", "memory_mhz", "pstate", "power_mw"),
    *("instant_mw", "energy_mj", "celsius", "reasons", "power_violation_ns"),
    *("thermal_violation_ns", "used_bytes", "pcie_sent_bytes", "pcie_received_bytes"),
)
STATE_FIELDS = (186, 74, 75, 197, 198)  # of STATE_COLUMNS: power, violations, PCIe's counters
WINDOW, SHORT, BURST_EVERY, BURST = 0.25, 0.0625, 5.0, 1.0  # s


class GpmWindows:
    """Windows of one GPU: short ones end to end within a burst, and long ones throughout."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(3)]
        self._base, self._last, self._next = 0, 1, 2
        self._times = [0.0, 0.0, 0.0]
        self._take(self._base)
        self._last = self._base
        self._next = 1
        self.rows: list[list[float]] = []

    def read(self) -> None:
        """Close the window since the last read, and the long one where it is long enough."""
        self._take(self._next)
        self.rows.append(self._between(self._last, self._next))
        whole = self._times[self._next] - self._times[self._base] >= WINDOW - SHORT / 2
        if whole and self._last != self._base:
            self.rows.append(self._between(self._base, self._next))
        self._last = self._next
        if whole:
            self._base = self._next
        self._next = next(i for i in range(3) if i not in (self._base, self._last))

    def _take(self, place: int) -> None:
        start = time.monotonic()
        pynvml.nvmlGpmSampleGet(self._handle, self._samples[place])
        self._times[place] = (start + time.monotonic()) / 2

    def _between(self, first: int, second: int) -> list[float]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_IDS)
        request.sample1, request.sample2 = self._samples[first], self._samples[second]
        for place, number in enumerate(GPM_IDS):
            request.metrics[place].metricId = number
        pynvml.nvmlGpmMetricsGet(request)
        told = [request.metrics[place] for place in range(len(GPM_IDS))]
        values = [float("nan") if m.nvmlReturn else m.value for m in told]
        return [self._times[first], self._times[second], *values]


class SampleBuffer:
    """One of the driver's buffers of samples, read so often that nothing is missed."""

    def __init__(self, handle: Any, kind: int) -> None:
        self._handle, self._kind = handle, kind
        self._seen = int(time.time() * 1e6)
        self.rows: list[list[float]] = []

    def read(self) -> None:
        """Take what is new. The driver stamps with the time of day."""
        since_boot = time.monotonic() - time.time()
        with contextlib.suppress(pynvml.NVMLError_NotFound):
            kind, samples = pynvml.nvmlDeviceGetSamples(self._handle, self._kind, self._seen)
            for sample in samples:
                if sample.timeStamp > self._seen:
                    self._seen = sample.timeStamp
                    value = sample.sampleValue.uiVal if kind == 1 else sample.sampleValue.ullVal
                    self.rows.append([sample.timeStamp / 1e6 + since_boot, value])


def _nvlink(handle: Any) -> list[float]:
    told = pynvml.nvmlDeviceGetFieldValues(handle, [(f, ALL_LINKS) for f in NVLINK_FIELDS])
    return [time.monotonic(), *(t.value.ullVal if not t.nvmlReturn else float("nan") for t in told)]


def _state(handle: Any) -> list[float]:
    used = pynvml.nvmlDeviceGetUtilizationRates(handle)
    fields = pynvml.nvmlDeviceGetFieldValues(handle, STATE_FIELDS)
    instant, power, thermal, sent, received = fields
    known: list[Callable[[], float]] = [
        lambda: used.gpu,
        lambda: used.memory,
        lambda: pynvml.nvmlDeviceGetClockInfo(handle, 1),
        lambda: pynvml.nvmlDeviceGetClockInfo(handle, 2),
        lambda: pynvml.nvmlDeviceGetPerformanceState(handle),
        lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        lambda: instant.value.uiVal,
        lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        lambda: pynvml.nvmlDeviceGetTemperatureV(handle, 0),
        lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        lambda: power.value.ullVal,
        lambda: thermal.value.ullVal,
        lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        lambda: sent.value.uiVal,
        lambda: received.value.uiVal,
    ]
    row = [time.monotonic()]
    for ask in known:
        try:
            row.append(float(ask()))
        except pynvml.NVMLError:
            row.append(float("nan"))
    return row


class DriverRecording:
    """All GPUs, each read at its own rate, until told to stop."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        self._gpm = [GpmWindows(h) for h in self._handles]
        kinds = {"power": 0, "utilization": 1, "memory_utilization": 2}
        self._buffers = {
            f"{name}{i}": SampleBuffer(h, kind)
            for name, kind in kinds.items()
            for i, h in enumerate(self._handles)
        }
        self._rows: dict[str, list[list[float]]] = {}
        self.processes: list[tuple[float, list[list[int]]]] = []
        self.by_process: list[Any] = []
        self.cpu: dict[str, float] = {}
        self._stamps = [0] * count

    def run(self, going: Callable[[], bool]) -> None:
        """Record while `going()`."""
        start = time.monotonic()

        def window() -> float:
            return SHORT if (time.monotonic() - start) % BURST_EVERY < BURST else WINDOW

        pieces: dict[str, tuple[float, Callable[[], None]]] = {
            "gpm": (0.0, self._read_windows),
            "nvlink": (0.1, lambda: self._each("nvlink", _nvlink)),
            "state": (0.5, lambda: self._each("state", _state)),
            "samples": (1.0, self._read_buffers),
            "processes": (0.5, self._ask_processes),
        }
        due = dict.fromkeys(pieces, start)
        while going():
            now = time.monotonic()
            for name, (every, read) in pieces.items():
                if now < due[name]:
                    continue
                busy = time.process_time()
                read()
                self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - busy
                due[name] = max(due[name] + (every or window()), now)
            time.sleep(max(0.0, min(due.values()) - time.monotonic()))
        self._read_buffers()

    def write(self, path: Path) -> None:
        """All arrays, compressed."""
        arrays = {name: np.array(rows) for name, rows in self._rows.items()}
        arrays |= {f"gpm{i}": np.array(g.rows, np.float32) for i, g in enumerate(self._gpm)}
        for i, windows in enumerate(self._gpm):  # single precision is too coarse for times
            arrays[f"gpm_times{i}"] = np.array([row[:2] for row in windows.rows])
        arrays |= {name: np.array(buffer.rows) for name, buffer in self._buffers.items()}
        np.savez_compressed(path, **arrays)

    def _each(self, name: str, read: Callable[[Any], list[float]]) -> None:
        for i, handle in enumerate(self._handles):
            self._rows.setdefault(f"{name}{i}", []).append(read(handle))

    def _read_windows(self) -> None:
        for windows in self._gpm:
            windows.read()

    def _read_buffers(self) -> None:
        for buffer in self._buffers.values():
            buffer.read()

    def _ask_processes(self) -> None:
        running = [
            sorted(p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h))
            for h in self._handles
        ]
        if not self.processes or self.processes[-1][1] != running:
            self.processes.append((time.monotonic(), running))
        for i, handle in enumerate(self._handles):
            with contextlib.suppress(pynvml.NVMLError):
                for told in pynvml.nvmlDeviceGetProcessUtilization(handle, self._stamps[i]):
                    self._stamps[i] = max(self._stamps[i], told.timeStamp)
                    self.by_process.append(
                        (time.monotonic(), i, told.pid, told.timeStamp, told.smUtil, told.memUtil)
                    )
