"""`/metrics/dcgm`: GPU metrics with the names, labels, and units of NVIDIA's dcgm-exporter.

`dcgm.toml` defines the names of both generations of dcgm-exporter. Every value is computed from the
samples in `/metrics`. A value that is absent there is absent here. The format is always the
Prometheus text format, because OpenMetrics requires that counter names end in `_total`.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from math import floor
from socket import gethostname
from typing import Literal

import msgspec

from agent.catalogue import METRICS
from agent.metrics import beside
from agent.model import Metric, Snapshot
from agent.series import SampleStore
from agent.sources import gpu, instances, system, xid
from agent.specs import xids
from exporters.prometheus import Exposition, head, line, start
from exporters.settings import DcgmConfig

DCGM_OFF = (
    "The names of dcgm-exporter are switched off: enabled = true below [dcgm] in the configuration "
    "switches them on.\n"
)
Samples = dict[str, dict[tuple[str, ...], float]]
"""Values of series, by metric name and label values."""


class DcgmUnit(msgspec.Struct, frozen=True):
    """Conversion to a DCGM unit: divide by `per`, and round down if `whole` is true."""

    per: float
    whole: bool = False

    def of(self, value: float) -> float:
        theirs = value / self.per
        # Rounded before `floor`, because 29 / 100 * 100 < 29.
        return float(floor(round(theirs, 6))) if self.whole else theirs


class DcgmName(msgspec.Struct, frozen=True):
    """Name, type, and unit of a field in one generation of dcgm-exporter."""

    name: str
    kind: Literal["gauge", "counter"]
    unit: str


class DcgmField(msgspec.Struct, frozen=True):
    """A DCGM field: its names, and the metrics whose sum it is."""

    what: str
    metrics: tuple[str, ...]
    where: dict[str, str] = {}
    instance: str = ""
    rate: bool = False
    before: DcgmName | None = None
    since: DcgmName | None = None

    def exported(self, names: str) -> Iterator[tuple[DcgmName, bool]]:
        """Yield each name that the setting `names` selects, and whether dcgm-exporter 4.9 and later
        use this name. Omit duplicates."""
        stayed = self.before and self.since and self.before.name == self.since.name
        if self.before and (names == "before-4.9" or (names == "both" and not stayed)):
            yield self.before, False
        if self.since and names != "before-4.9":
            yield self.since, True

    def of_gpus(self, samples: Samples, rates: Samples) -> dict[str, float]:
        """Return the values of the field by GPU UUID. Omit GPUs for which a metric is absent."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for name in self.metrics:
            place = METRICS[name].labels.index
            wanted = [(place(label), text.split("|")) for label, text in self.where.items()]
            for labels, value in (rates if self.rate else samples)[name].items():
                if all(labels[at] in texts for at, texts in wanted):
                    of_gpu = found[labels[1]]
                    of_gpu[name] = of_gpu.get(name, 0.0) + value
        whole = len(self.metrics)
        return {uuid: sum(by.values()) for uuid, by in found.items() if len(by) == whole}


class DcgmTable(msgspec.Struct, frozen=True):
    """The contents of `dcgm.toml`. `labels` maps label names to keys of a row (see `_rows`)."""

    unit: dict[str, DcgmUnit]
    labels: dict[str, str]
    labels_before: dict[str, str]
    labels_since: dict[str, str]
    field: tuple[DcgmField, ...]


@cache
def table() -> DcgmTable:
    return msgspec.convert(beside(__file__), DcgmTable)


@dataclass(eq=False)
class DcgmExposition(Exposition):
    """Renders the latest snapshot with DCGM names, at most once per tick."""

    samples: SampleStore
    config: Callable[[], DcgmConfig]
    _: KW_ONLY
    host: str = field(default_factory=lambda: os.environ.get("NODE_NAME") or gethostname())
    _rates: Samples = field(default_factory=lambda: defaultdict(dict))

    @property
    def enabled(self) -> bool:
        return self.config().enabled

    def tick(self, _: Snapshot) -> None:
        """Compute the rates that are exported as gauges, on every tick. A rate covers the last few
        seconds, or the last two readings of a metric with a long interval."""
        found: Samples = defaultdict(dict)
        fields = table().field if self.enabled else ()
        for name in (name for one in fields if one.rate for name in one.metrics):
            for labels in self.samples.all(METRICS[name]):
                rate = self.samples.rate(METRICS[name], *labels)
                if rate is not None:
                    found[name][labels] = rate
        self._rates = found

    def write(self, snapshot: Snapshot, at: float, _: str) -> bytes:
        samples: Samples = defaultdict(dict)
        for metric, labels, value in snapshot.samples(at):
            samples[metric.name][labels] = value
        rows = list(self._rows(samples))
        texts = (text for one in table().field for text in self._text(one, samples, rows))
        return "".join(texts).encode()

    def _text(self, one: DcgmField, samples: Samples, rows: list[dict[str, str]]) -> Iterator[str]:
        """Yield the exposition lines of a field, for each of its names."""
        whole = one.of_gpus(samples, self._rates)
        parts = {labels[1:3]: value for labels, value in samples[one.instance].items()}
        found = []
        for says in rows:
            uuid, instance = says["uuid"], says["instance"]
            value = parts.get((uuid, instance)) if instance and one.instance else whole.get(uuid)
            if value is not None:
                of_xid = one.metrics == (xid.LAST.name,)
                found.append(({**says, **about(int(value))} if of_xid else says, value))
        known = table()
        for dcgm, since in one.exported(self.config().names):
            name, kind, unit = dcgm.name, dcgm.kind, dcgm.unit
            labels = known.labels | (known.labels_since if since else known.labels_before)
            if found:
                words = f"{one.what}{'' if unit == '1' else f', in {unit}'}."
                yield head(name, kind, f"{words} Origin: {', '.join(one.metrics)}.")
            for says, value in found:
                have = {label: says[what] for label, what in labels.items() if says.get(what)}
                yield line(start(name, (*have,), (*have.values(),)), known.unit[unit].of(value))

    def _rows(self, samples: Samples) -> Iterator[dict[str, str]]:
        """Yield the possible label values of each GPU, or of each of its MIG instances."""
        driver = next((of["driver_version"] for of in _labelled(samples, system.INFO)), "")
        divided: dict[str, dict[str, str]] = defaultdict(dict)
        for part in _labelled(samples, instances.INSTANCE_INFO):
            # As in 1c.3g.40gb, if a compute instance is smaller than its GPU instance.
            whole = re.sub(r"\d+c\.", "", part["profile"])
            divided[part["uuid"]][part["gpu_instance"]] = whole
        for one in sorted(_labelled(samples, gpu.INFO), key=lambda info: int(info["gpu"])):
            says = {name: one[name] for name in ("uuid", "pci_bus_id", "model")}
            says |= {"index": one["gpu"], "device": f"nvidia{one['gpu']}"}
            says |= {"host": self.host, "driver": driver}
            for number, profile in divided.get(one["uuid"], {"": ""}).items():
                yield {**says, "instance": number, "profile": profile}


def _labelled(samples: Samples, metric: Metric) -> Iterator[dict[str, str]]:
    return (dict(zip(metric.labels, texts, strict=True)) for texts in samples[metric.name])


def about(code: int) -> dict[str, str]:
    return {"xid": str(code), "meaning": xids.meaning(code).name if code else "no error"}
