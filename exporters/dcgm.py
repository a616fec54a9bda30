"""`/metrics/dcgm`: the same GPUs under the names, labels and units of NVIDIA's dcgm-exporter.

Every value is made of samples of the snapshot that `/metrics` tells. What is absent there is absent
here. The format is the plain text of Prometheus, whoever asks: OpenMetrics has no name for a
counter that does not end in `_total`.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from socket import gethostname
from typing import NamedTuple, Protocol

from prometheus_client.metrics_core import Metric as MetricFamily

from agent.catalogue import METRICS
from agent.clock import Clock
from agent.model import Snapshot
from agent.series import SampleStore
from agent.sources import gpu, instances, system, xid
from agent.specs import xids
from exporters.dcgm_names import DcgmConfig, DcgmField, DcgmName, DcgmTable, rated, table
from exporters.negotiation import Format
from exporters.prometheus import Exposition
from exporters.series_lines import OneFamily, encodable

OFF = (
    "The names of dcgm-exporter are switched off: enabled = true below [dcgm] in the configuration "
    "switches them on.\n"
)
SLICE = re.compile(r"\d+c\.")
"""How the profile of a compute instance begins that has not all of its GPU instance."""

NO_ERROR = "no error"
COUNT = "1"  # the unit of what has none

Rates = dict[tuple[str, tuple[str, ...]], float]
"""How much counters grow a second, by name and labels."""
PerGpu = dict[tuple[str, ...], float]
"""Values by UUID, or by UUID and number of a MIG instance."""


class DcgmRow(NamedTuple):
    """A GPU or MIG instance that has series: what its labels can say."""

    uuid: str
    instance: str
    says: dict[str, str]


class SampledSnapshots(Protocol):
    """Who publishes snapshots, and keeps the samples of the last seconds: the poller."""

    samples: SampleStore

    @property
    def latest(self) -> Snapshot:
        """The last tick's."""


class DcgmExposition(Exposition):
    """Renders the newest snapshot under these names, at most once a tick."""

    def __init__(
        self, poller: SampledSnapshots, clock: Clock, config: Callable[[], DcgmConfig]
    ) -> None:
        super().__init__(lambda: poller.latest, clock, process=False)
        self._samples = poller.samples
        self._config = config
        self._host = os.environ.get("NODE_NAME") or gethostname()
        self._rates: Rates = {}

    @property
    def enabled(self) -> bool:
        return self._config().enabled

    def tick(self, _: Snapshot) -> None:
        """A listener of the poller: keep the rates of what is told as rates, over the last seconds
        or the last two readings of what is read less often."""
        found: Rates = {}
        for name in rated() if self.enabled else ():
            for labels in self._samples.all(METRICS[name]):
                rate = self._samples.rate(METRICS[name], *labels)
                if rate is not None:
                    found[name, labels] = rate
        self._rates = found

    def write(self, snapshot: Snapshot, at: float, form: Format) -> bytes:
        """All families, in the order of the table; gauges for the library, which would add a
        `_total` to the names of counters."""
        names = table()
        samples = SampleStore.of(snapshot, at)
        rows = list(self._rows(samples))
        text = b""
        for one in names.field:
            for family, kind in self._families(one, names, samples, rows):
                written = form.encode(OneFamily(family))
                head = f"# TYPE {family.name} "
                text += written.replace(f"{head}gauge".encode(), f"{head}{kind}".encode())
        return text

    def _families(
        self, one: DcgmField, names: DcgmTable, samples: SampleStore, rows: list[DcgmRow]
    ) -> Iterator[tuple[MetricFamily, str]]:
        whole = per_gpu(one, samples, self._rates)
        parts = of_instances(one, samples)
        last = xid.LAST.name in one.metrics
        for told, since in one.told(self._config().names):
            unit, labels = names.unit[told.unit], names.labels_of(since=since)
            family = MetricFamily(told.name, meaning(one, told), "gauge")
            for row in rows:
                value = whole.get((row.uuid,))
                if row.instance and one.instance:
                    value = parts.get((row.uuid, row.instance))
                if value is None:
                    continue
                says = row.says if not last else {**row.says, **about(int(value))}
                values = {name: says[what] for name, what in labels.items() if says.get(what)}
                family.add_sample(told.name, values, unit.of(value))
            if family.samples:
                yield family, told.kind

    def _rows(self, samples: SampleStore) -> Iterator[DcgmRow]:
        """A row for each GPU, or for each of the instances into which MIG divides it."""
        facts = samples.labelled(system.INFO)
        driver = facts[-1]["driver_version"] if facts else ""
        divided: dict[str, dict[str, str]] = defaultdict(dict)
        for part in samples.labelled(instances.INFO):
            divided[part["uuid"]][part["gpu_instance"]] = SLICE.sub("", part["profile"])
        for one in sorted(samples.labelled(gpu.INFO), key=lambda info: int(info["gpu"])):
            says = {
                "index": one["gpu"],
                "uuid": one["uuid"],
                "pci_bus_id": one["pci_bus_id"],
                "device": f"nvidia{one['gpu']}",
                "model": encodable(one["model"]),
                "host": encodable(self._host),
                "driver": driver,
            }
            for number, profile in divided.get(one["uuid"], {"": ""}).items():
                place = {"instance": number, "profile": profile}
                yield DcgmRow(one["uuid"], number, {**says, **place})


def per_gpu(one: DcgmField, samples: SampleStore, rates: Rates) -> PerGpu:
    """The sum of what a field tells of each GPU; nothing where one of its metrics is absent."""
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for name in one.metrics:
        for labels, value in samples.where(METRICS[name], **one.where).items():
            told = rates.get((name, labels)) if one.rate else value
            if told is not None:
                of_gpu = found[labels[1:2]]
                of_gpu[name] = of_gpu.get(name, 0.0) + told
    return {uuid: sum(by.values()) for uuid, by in found.items() if len(by) == len(one.metrics)}


def of_instances(one: DcgmField, samples: SampleStore) -> PerGpu:
    """What it tells of each MIG instance."""
    if not one.instance:
        return {}
    return {labels[1:3]: v for labels, v in samples.all(METRICS[one.instance]).items()}


def meaning(one: DcgmField, told: DcgmName) -> str:
    """What HELP says."""
    unit = "" if told.unit == COUNT else f", in {told.unit}"
    return f"{one.what}{unit}. Origin: {', '.join(one.metrics)}."


def about(code: int) -> dict[str, str]:
    """What labels say of an XID error."""
    return {"xid": str(code), "meaning": xids.meaning(code).name if code else NO_ERROR}
