"""Reads the TOML files next to Python modules, and the metrics that these files declare."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, convert

from agent.model import InDefault, Kind, Labels, Metric
from agent.ranges import ANY, FASTEST_NVLINK, FASTEST_PCIE, FLAG, NOT_NEGATIVE, Range

RANGES = {
    "flag": FLAG,
    "ratio": Range(0, 1.05),
    "bytes": Range(0, 1e13),  # GPU memory
    "processes": Range(0, 1e5),
    "wire": Range(1, 1e12),
}
FASTEST = {"wire": 1e12, "pcie": FASTEST_PCIE, "nvlink": FASTEST_NVLINK, "stepwise": 3.0}
"""Named values of `fastest`, the maximum increase of a counter per second. No disk, array, NIC, or
port reaches "wire" bytes per second. "stepwise" is for counters of seconds that a driver increases
in steps, which may be longer than the interval between two reads."""


class Declaration(Struct, frozen=True, forbid_unknown_fields=True):
    """The declaration of a metric: its table in a TOML file. Most keys are attributes of `Metric`.

    `possible` is a range or a name in `RANGES`, and `fastest` a number or a name in `FASTEST`.
    `which` contains label values. Series with one of these values are in the default set.

    If a single NVML call returns a GPU value, the metric requires no code. `call` is a field ID, or
    the name of a getter without the prefix `nvmlDeviceGet`. After the name, it may contain
    arguments and a member or index of the result, as in `TotalEccErrors(0, 1)`,
    `BAR1MemoryInfo.bar1Used`, and `RemappedRows.3`. `.len` is the length of a list. If `call` is a
    table, it contains a call for each series, by label values separated by spaces. The returned
    value, multiplied by `times` and divided by `per`, is in the unit of the metric. `every` names
    an interval in `polling`. `source` is the source that is down if the call fails (by default, the
    file's).

    `kinds` contains data about each value of a label, such as the bit of each throttle reason. Only
    the code that reads the metric uses `kinds`.
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
    call: str | int | dict[str, str] = ""
    times: float = 1.0
    per: float = 1.0
    every: str = ""
    source: str = ""
    kinds: dict[str, Any] = {}

    def metric(self, name: str) -> Metric:
        """Return the declared metric. It is a counter if `name` ends in `_total`."""
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
    """The metrics that a TOML file declares, by name."""

    def __init__(self, tables: Mapping[str, Declaration]) -> None:
        super().__init__({name: table.metric(name) for name, table in tables.items()})
        self.asked = [(self[name], table) for name, table in tables.items() if table.call]
        self.kinds = {name: table.kinds for name, table in tables.items()}


def beside(module: str, name: str = "") -> dict[str, Any]:
    """Return the contents of the TOML file `name` in the folder of `module`, which is the
    `__file__` of a module. By default, the file has the name of the module."""
    path = Path(module)
    return tomllib.loads((path.parent / f"{name or path.stem}.toml").read_text(encoding="utf-8"))


def declared_beside(module: str) -> Declarations:
    """Return the metrics in the TOML file with the name of `module`, the `__file__` of a module."""
    return Declarations(convert(beside(module), dict[str, Declaration]))
