"""Names of dcgm-exporter for our metrics, in both its generations: `dcgm.toml`, checked."""

import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from math import floor
from pathlib import Path
from typing import Literal

import msgspec

from agent.catalogue import METRICS
from agent.config.decoding import Mismatch, decode, shown
from agent.config.settings import Section
from agent.model import GPU_LABELS

TABLE = Path(__file__).with_name("dcgm.toml")

LABELS = {
    "index": "NVML's index",
    "uuid": "the UUID",
    "pci_bus_id": "the PCI address",
    "device": "nvidia and the index",
    "model": "the model",
    "host": "$NODE_NAME, else the name of the host",
    "driver": "the driver's version",
    "instance": "the number of the MIG instance, on its rows",
    "profile": "the profile of the MIG instance, on its rows",
    "xid": "the code, on the last XID error",
    "meaning": "what the code means, on the last XID error",
}
"""What a label of `dcgm.toml` may say, and in words."""

Labels = dict[str, str]
"""Labels with the value, or what says it."""

EXACT = 6
"""Decimals to which a value is known before it is rounded down: 29 / 100 * 100 is less than 29."""


class DcgmConfig(Section, frozen=True):
    """`/metrics/dcgm`: whether it answers, and with which names."""

    table = "dcgm"

    enabled: bool = False
    names: Literal["both", "before-4.9", "4.9"] = "both"


class DcgmUnit(msgspec.Struct, frozen=True):
    """How much of our unit one of theirs is, and whether theirs has no fraction."""

    per: float
    whole: bool = False

    def of(self, value: float) -> float:
        """A value of ours in this unit."""
        theirs = value / self.per
        return float(floor(round(theirs, EXACT))) if self.whole else theirs


class DcgmName(msgspec.Struct, frozen=True):
    """A field in one generation."""

    name: str
    kind: Literal["gauge", "counter"]
    unit: str


class DcgmField(msgspec.Struct, frozen=True):
    """One field: which samples of ours it is made of, and what it is called."""

    what: str
    metrics: tuple[str, ...]
    where: Labels = {}
    instance: str = ""
    rate: bool = False
    before: DcgmName | None = None
    since: DcgmName | None = None

    def __post_init__(self) -> None:
        named = [("metrics", name) for name in self.metrics]
        for key, name in [*named, ("instance", self.instance)] if self.instance else named:
            if name not in METRICS:
                raise Mismatch(key, shown(name), "a metric of the agent")
            if METRICS[name].labels[:2] != GPU_LABELS:
                raise Mismatch(key, shown(name), "a metric of single GPUs")
        for name in self.where:
            if any(name not in METRICS[metric].labels for metric in self.metrics):
                raise Mismatch("where", shown(name), f"a label of {', '.join(self.metrics)}")
        if not (self.before or self.since):
            raise Mismatch("since", "missing", "a name in `before` or in `since`", of_key=True)

    @property
    def stayed(self) -> bool:
        """Whether both generations have the same name for it."""
        return bool(self.before and self.since and self.before.name == self.since.name)

    def exported(self, names: str) -> Iterator[tuple[DcgmName, bool]]:
        """Its names by the setting `names`, and whether each is of 4.9; each name once."""
        if self.before and (names == "before-4.9" or (names == "both" and not self.stayed)):
            yield self.before, False
        if self.since and names != "before-4.9":
            yield self.since, True


class Unsupported(msgspec.Struct, frozen=True):
    """Names that are not exported, and why."""

    names: tuple[str, ...]
    why: str


class DcgmTable(msgspec.Struct, frozen=True):
    """The whole file."""

    unit: dict[str, DcgmUnit]
    labels: Labels
    labels_before: Labels
    labels_since: Labels
    field: tuple[DcgmField, ...]
    unsupported: tuple[Unsupported, ...]

    def __post_init__(self) -> None:
        for key in ("labels", "labels_before", "labels_since"):
            for label, says in getattr(self, key).items():
                if says not in LABELS:
                    raise Mismatch(f"{key}.{label}", shown(says), f"one of {', '.join(LABELS)}")
        seen = {name for unsupported in self.unsupported for name in unsupported.names}
        for place, field in enumerate(self.field):
            for key, one in (("before", field.before), ("since", field.since)):
                if one and one.unit not in self.unit:
                    expected = f"one of {', '.join(self.unit)}"
                    raise Mismatch(f"field[{place}].{key}.unit", shown(one.unit), expected)
            for one, _ in field.exported("both"):
                if one.name in seen:
                    expected = "a name that stands nowhere else"
                    raise Mismatch(f"field[{place}]", shown(one.name), expected)
                seen.add(one.name)

    def labels_of(self, *, since: bool) -> Labels:
        """The labels of one generation: what says the value of each."""
        return {**self.labels, **(self.labels_since if since else self.labels_before)}


def parse(text: str) -> DcgmTable:
    """The file's text; raises Mismatch, which says in a sentence what is wrong where."""
    return decode(tomllib.loads(text), DcgmTable)


@cache
def table() -> DcgmTable:
    """The names as shipped."""
    return parse(TABLE.read_text(encoding="utf-8"))


def rated() -> frozenset[str]:
    """Our metrics of which rates are exported."""
    return frozenset(chain.from_iterable(f.metrics for f in table().field if f.rate))
