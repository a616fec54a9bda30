"""Metrics as their TOML file declares them: the file beside each module that reads them."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, convert

from agent.model import InDefault, Kind, Labels, Metric
from agent.ranges import ANY, FASTEST_NVLINK, FASTEST_PCIE, FLAG, NOT_NEGATIVE, Range

RANGES = {
    "flag": FLAG,
    "ratio": Range(0, 1.05),
    "bytes": Range(0, 1e13),  # of the memory of a GPU
    "processes": Range(0, 1e5),
    "wire": Range(1, 1e12),
}
FASTEST = {"wire": 1e12, "pcie": FASTEST_PCIE, "nvlink": FASTEST_NVLINK, "stepwise": 3.0}
"""Growth of counters per second. No single disk, array, NIC or port moves the bytes of "wire". A
driver advances a counter of seconds in coarse steps, which may be longer than the time between two
reads: "stepwise"."""


class Declaration(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: the fields of `Metric`.

    `possible` and `fastest` are numbers, or a name in `RANGES` and `FASTEST`. `which` lists values
    of labels: the default set has each series with one of them.

    A value of a GPU that NVML answers by itself needs no more: `call` is the getter without
    `nvmlDeviceGet`, or the id of a field, `per` its units in a unit of the metric, `every` the
    name of an interval.
    """

    meaning: str
    origin: str
    labels: Labels = ()
    internal: bool = False
    possible: tuple[float, float] | str | None = None
    fastest: float | Literal["wire", "pcie", "nvlink", "stepwise"] | None = None
    step: float | None = None
    shown: InDefault = InDefault.ALL
    parts: Labels = ()
    which: Labels = ()
    call: str | int = ""
    per: float = 1.0
    every: str = ""

    def metric(self, name: str) -> Metric:
        """The metric of this name; a counter if the name says so."""
        counts = name.endswith("_total")
        kind = Kind.COUNTER if counts else Kind.INTERNAL if self.internal else Kind.GAUGE
        possible = NOT_NEGATIVE if counts else ANY
        if self.possible is not None:
            one = self.possible
            possible = RANGES[one] if isinstance(one, str) else Range(*one)
        fastest = FASTEST[self.fastest] if isinstance(self.fastest, str) else self.fastest
        return Metric(
            *(name, self.meaning, self.origin, self.labels, possible, fastest, self.step, kind),
            shown=self.shown,
            parts=self.parts,
            which=lambda labels: not {*self.which}.isdisjoint(labels),
        )


class Declarations(dict[str, Metric]):
    """The metrics of a file, by name."""

    def __init__(self, tables: Mapping[str, Declaration]) -> None:
        super().__init__({name: table.metric(name) for name, table in tables.items()})
        self.asked = [(self[name], table) for name, table in tables.items() if table.call]


def declared_beside(module: str) -> Declarations:
    """The metrics of the TOML file beside a module (its `__file__`)."""
    text = Path(module).with_suffix(".toml").read_text(encoding="utf-8")
    return Declarations(convert(tomllib.loads(text), dict[str, Declaration]))
