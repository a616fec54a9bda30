"""`/metrics/dcgm`: the same GPUs under the names, labels and units of NVIDIA's dcgm-exporter.

Every value is made of samples of the snapshot that `/metrics` has. What is absent there is absent
here. The format is the plain text of Prometheus, who asks: OpenMetrics has no name for a
counter that does not end in `_total`.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from socket import gethostname
from typing import NamedTuple, Protocol

from agent.catalogue import METRICS
from agent.errors import encodable
from agent.model import Metric, Snapshot
from agent.series import SampleStore
from agent.sources import gpu, instances, system, xid
from agent.specs import xids
from exporters.dcgm_names import DcgmConfig, DcgmField, DcgmName, rated, table
from exporters.guard import Guard
from exporters.negotiation import Format
from exporters.prometheus import Exposition
from exporters.series_lines import FamilyLines

OFF = (
    "The names of dcgm-exporter are switched off: enabled = true below [dcgm] in the configuration "
    "switches them on.\n"
)
SLICE = re.compile(r"\d+c\.")
"""How the profile of a compute instance begins that has not all of its GPU instance."""

NO_ERROR = "no error"
COUNT = "1"  # the unit of what has none

Texts = tuple[str, ...]
Rates = dict[tuple[str, Texts], float]
"""How much counters grow a second, by name and labels."""
Samples = dict[str, dict[Texts, float]]
"""The snapshot's, by name and labels."""
PerGpu = dict[Texts, float]
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
        self, poller: SampledSnapshots, now: Callable[[], float], config: Callable[[], DcgmConfig]
    ) -> None:
        super().__init__(lambda: poller.latest, now, process=False)
        self._samples = poller.samples
        self._config = config
        self._host = os.environ.get("NODE_NAME") or gethostname()
        self._rates: Rates = {}
        self._families: dict[tuple[str, Texts], FamilyLines] = {}  # by name, and names of labels

    @property
    def enabled(self) -> bool:
        return self._config().enabled

    def tick(self, _: Snapshot) -> None:
        """A listener of the poller: keep the rates that are exported as such, over some seconds or
        the last two readings of what is read less often."""
        found: Rates = {}
        for name in rated() if self.enabled else ():
            for labels in self._samples.all(METRICS[name]):
                rate = self._samples.rate(METRICS[name], *labels)
                if rate is not None:
                    found[name, labels] = rate
        self._rates = found

    def write(self, snapshot: Snapshot, at: float, form: Format) -> bytes:
        """All families, in the order of the table."""
        samples: Samples = defaultdict(dict)
        for metric, labels, value in snapshot.samples(at):
            samples[metric.name][labels] = value
        rows = list(self._rows(samples))
        found = ((one, list(self._rows_of(one, samples, rows))) for one in table().field)
        return "".join(part for one, of in found for part in self._text(one, of, form)).encode()

    def _rows_of(
        self, one: DcgmField, samples: Samples, rows: list[DcgmRow]
    ) -> Iterator[tuple[dict[str, str], float]]:
        """What labels can say, and the value in our unit, of each row that has one."""
        whole = per_gpu(one, samples, self._rates)
        parts = of_instances(one, samples)
        for row in rows:
            value = whole.get((row.uuid,))
            if row.instance and one.instance:
                value = parts.get((row.uuid, row.instance))
            if value is not None:
                more = about(int(value)) if xid.LAST.name in one.metrics else {}
                yield {**row.says, **more}, value

    def _text(
        self, one: DcgmField, rows: list[tuple[dict[str, str], float]], form: Format
    ) -> Iterator[str]:
        """Its families, under each of its names; rows of MIG instances have two labels more."""
        for dcgm, since in one.exported(self._config().names):
            labels, unit = table().labels_of(since=since), table().unit[dcgm.unit]
            groups: dict[Texts, tuple[list[Texts], list[float]]] = {}
            for says, value in rows:
                have = {name: says[what] for name, what in labels.items() if says.get(what)}
                texts, values = groups.setdefault(tuple(have), ([], []))
                texts.append(tuple(have.values()))
                values.append(unit.of(value))
            head = f"# TYPE {dcgm.name} "
            for place, (names, (texts, values)) in enumerate(groups.items()):
                lines = self._lines_of(one, dcgm, names, form)
                lines.write(texts, values)
                if place:
                    yield "".join(lines.pieces[1:])
                else:
                    yield lines.text.replace(f"{head}gauge", f"{head}{dcgm.kind}", 1)

    def _lines_of(self, one: DcgmField, dcgm: DcgmName, names: Texts, form: Format) -> FamilyLines:
        """As gauges for the library, which would add `_total` to the names of counters."""
        key = dcgm.name, names
        if key not in self._families:
            unit = "" if dcgm.unit == COUNT else f", in {dcgm.unit}"
            origin = ", ".join(one.metrics)
            metric = Metric(dcgm.name, f"{one.what}{unit}.", origin, names)
            lines = FamilyLines(metric, form.encode, lambda *_: True, Guard(dcgm.name))
            self._families[key] = lines
        return self._families[key]

    def _rows(self, samples: Samples) -> Iterator[DcgmRow]:
        """A row for each GPU, or for each of the instances into which MIG divides it."""
        driver = next((of["driver_version"] for of in labelled(samples, system.INFO)), "")
        divided: dict[str, dict[str, str]] = defaultdict(dict)
        for part in labelled(samples, instances.INFO):
            divided[part["uuid"]][part["gpu_instance"]] = SLICE.sub("", part["profile"])
        for one in sorted(labelled(samples, gpu.INFO), key=lambda info: int(info["gpu"])):
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


def labelled(samples: Samples, metric: Metric) -> Iterator[dict[str, str]]:
    """The labels of every sample of an info metric."""
    return (dict(zip(metric.labels, texts, strict=True)) for texts in samples[metric.name])


def per_gpu(one: DcgmField, samples: Samples, rates: Rates) -> PerGpu:
    """The sum of what a field exports, of each GPU,; nothing where one of its metrics is absent."""
    found: dict[Texts, dict[str, float]] = defaultdict(dict)
    for name in one.metrics:
        of = METRICS[name].labels.index
        places = [(of(label), text.split("|")) for label, text in one.where.items()]
        for labels, value in samples[name].items():
            shown = rates.get((name, labels)) if one.rate else value
            if shown is not None and all(labels[place] in texts for place, texts in places):
                of_gpu = found[labels[1:2]]
                of_gpu[name] = of_gpu.get(name, 0.0) + shown
    return {uuid: sum(by.values()) for uuid, by in found.items() if len(by) == len(one.metrics)}


def of_instances(one: DcgmField, samples: Samples) -> PerGpu:
    """What it exports of each MIG instance."""
    return {labels[1:3]: value for labels, value in samples[one.instance].items()}


def about(code: int) -> dict[str, str]:
    """What labels say of an XID error."""
    return {"xid": str(code), "meaning": xids.meaning(code).name if code else NO_ERROR}
