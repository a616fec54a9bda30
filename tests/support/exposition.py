"""Helpers for exporter tests: metrics, snapshots, their expected form, and a bench."""

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client import exposition
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from agent.errors import encodable
from agent.model import (
    GPU_LABELS,
    Absence,
    Kind,
    Metric,
    Reading,
    ReadKey,
    Reason,
    Sample,
    Snapshot,
)
from agent.ranges import NOT_NEGATIVE
from exporters.prometheus import OPEN, Exposition, negotiate
from exporters.settings import MetricsConfig
from tests.stack.running import run_to_end
from tests.support.frozen_clock import FrozenClock
from tests.support.patience import PATIENCE

counter = partial(Metric, kind=Kind.COUNTER, possible=NOT_NEGATIVE)
A, B = ("0", "GPU-a"), ("10", "GPU-b")
POWER = Metric("dgx_gpu_power_watts", "Power drawn.", "nvmlDeviceGetPowerUsage", GPU_LABELS)
ENERGY = counter("dgx_gpu_energy_joules_total", "Energy used.", "nvmlTotalEnergy", GPU_LABELS)
CLOCK = Metric("dgx_gpu_clock_hertz", "Clock.", "nvmlClock", (*GPU_LABELS, "clock"))
GPU_INFO = Metric("dgx_gpu_info", "Which GPU; always 1.", "nvmlName", (*GPU_LABELS, "model"))
BUSY = Metric("dgx_cpu_busy_ratio", "All cores.", "/proc/stat")
READ = counter("dgx_disk_read_bytes_total", "Read.", "/proc/diskstats", ("device",))
LOADERS = Metric(
    "dgx_loader_sleep_ratio", "Loaders asleep.", "/proc/*/stat", GPU_LABELS, kind=Kind.INTERNAL
)
SYSTEM = Metric("dgx_system_info", "System; always 1.", "DMI", ("system", "driver_version"))
UP = Metric("dgx_agent_source_up", "Source answers.", "the agent", ("source",))
SPENT = counter("dgx_agent_read_seconds_total", "Wall time.", "the agent", ("source",))
LIMIT = Metric(
    "dgx_bandwidth_limit_bytes_per_second",
    "Limit.",
    "specs",
    ("path", "device", "gpu", "uuid", "direction"),
)

OM = "application/openmetrics-text"
TEXT_0 = "text/plain; version=0.0.4; charset=utf-8"
OM_1 = f"{OM}; version=1.0.0; charset=utf-8"
PROMETHEUS_2 = (
    f"{OM};version=1.0.0,{OM};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    f"{OM};version=1.0.0;escaping=allow-utf-8;q=0.6,{OM};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

GOLDEN_TEXT = Path(__file__).with_name("exposition.prom").read_text(encoding="utf-8")
GOLDEN_OPENMETRICS = (
    "".join(
        line.replace("_total ", " ", 1) if line.startswith("#") else line
        for line in GOLDEN_TEXT.splitlines(keepends=True)
    )
    + "# EOF\n"
)


def reading(part: str, *samples: Sample, at: float = 0.0, every: float = 1.0) -> Reading:
    return Reading(ReadKey("test", part), at, every, samples)


def snapshot(*readings: Reading, tick: int = 1) -> Snapshot:
    return Snapshot(tick, 0.0, 1_700_000_000.25, {r.key: r for r in readings})


def power(labels: tuple[str, str], watts: float) -> Sample:
    return Sample(POWER, labels, watts)


SMALL = snapshot(
    reading("b", power(B, 60.0), Sample(ENERGY, A, 0.0), Sample(LOADERS, A, 0.5)),
    reading("a", power(A, 412.345), Sample(BUSY, (), 0.25)),
    reading("disk", Sample(READ, ("nvme0n1",), 1.2e10), Sample(READ, ('a"b\\c\nd',), 5.0)),
)

RICH = snapshot(
    replace(
        reading(
            "gpu0",
            power(A, 400.0),
            Sample(GPU_INFO, (*A, "H100"), 1.0),
            Sample(CLOCK, (*A, "sm"), 1.98e9),
            Sample(CLOCK, (*A, "memory"), 2.6e9),
            Sample(LOADERS, A, 0.5),
            Sample(LIMIT, ("nvlink", "gpu0", *A, "transmit"), 4.5e11),
        ),
        absences=(
            Absence(ENERGY, A, Reason.UNSUPPORTED, "nvmlTotalEnergy"),
            Absence(CLOCK, (*A, "video"), Reason.DENIED, "video clock"),
        ),
    ),
    replace(
        reading(
            "host",
            Sample(BUSY, (), 0.25),
            Sample(READ, ("nvme0n1",), 7.0),
            Sample(READ, ("md0",), math.nan),
            Sample(LIMIT, ("disk", "nvme0n1", "", "", "read"), 6.5e9),
            Sample(SYSTEM, ("dgx-h100", "580"), 1.0),
            Sample(UP, ("nvml",), 1.0),
            Sample(UP, ("host",), 0.0),
            Sample(SPENT, ("nvml",), 1.5),
        ),
        absences=(Absence(READ, ("sdb",), Reason.MISSING, "/proc/diskstats"),),
    ),
    reading("gpu10", power(B, 60.0), at=0.5),
    reading("gpu9", power(("9", "GPU-c"), 61.0), at=0.5),
)


class ExpositionBench:
    """An exposition over a snapshot that tests replace; counts how often it is built."""

    def __init__(self, first: Snapshot = SMALL, *, process: bool = False) -> None:
        self.snapshot = first
        self.clock = FrozenClock()
        self.builds = 0
        self.pause = threading.Event()
        self.pause.set()
        self.building = threading.Event()
        self.exposition = Exposition(
            self.latest, self.clock.monotonic, process=process, selected=self.selected
        )

    def latest(self) -> Snapshot:
        return self.snapshot

    def selected(self) -> MetricsConfig:
        self.builds += 1
        self.building.set()
        assert self.pause.wait(PATIENCE)
        return MetricsConfig(set="full")

    def text(self, accept: str = "") -> str:
        return self.exposition.page(accept).plain.decode()


FAMILIES: dict[Kind, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
}


class LibraryCollector(Collector):
    """A snapshot as families of prometheus_client: what the exposition must equal."""

    def __init__(self, snapshot: Snapshot, at: float) -> None:
        self._samples = list(snapshot.samples(at))

    def collect(self) -> Iterator[MetricFamily]:
        """Families in the order of their names, samples in the order of their label values."""
        values: dict[str, dict[tuple[str, ...], float]] = {}
        metrics = {}
        for metric, labels, value in self._samples:
            if metric.kind in FAMILIES and math.isfinite(value):
                metrics[metric.name] = metric
                values.setdefault(metric.name, {})[labels] = value
        for name in sorted(metrics):
            metric = metrics[name]
            family = FAMILIES[metric.kind](name, metric.help, labels=metric.labels)
            for labels, value in sorted(values[name].items()):
                family.add_metric([encodable(label) for label in labels], value)
            yield family


def of_the_library(snapshot: Snapshot, at: float, accept: str) -> bytes:
    """Return the exposition of prometheus_client for a snapshot."""
    library = openmetrics if negotiate(accept) == OPEN else exposition
    return bytes(library.generate_latest(LibraryCollector(snapshot, at)))


def complaints(page: str) -> tuple[int, str]:
    """Return the exit status of promtool for a page of metrics, and what it says of them."""
    done = run_to_end(["promtool", "check", "metrics"], page)
    return done.returncode, done.stdout + done.stderr
