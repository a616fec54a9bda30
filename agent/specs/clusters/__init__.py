"""Clusters: what their networks carry, by a sheet or as it is configured (`[[cluster]]`)."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated

from msgspec import Meta, Struct

from agent.config.decoding import Mismatch, decode
from agent.config.settings import Section
from agent.specs.sheets import SpecValue

MOST_RATE = 1e18
Rate = Annotated[
    float, Meta(gt=0, le=MOST_RATE, description=f"a number above 0 and at most {MOST_RATE:g}")
]


class ClusterSheet(Struct, frozen=True):
    """`[cluster]` of a sheet."""

    title: str
    system: str
    systems: SpecValue
    systems_per_switch: SpecValue
    bisection: SpecValue

    @property
    def bytes_per_second(self) -> float:
        """Between two halves of the cluster, both directions together."""
        return self.bisection.base


class ClusterFile(Struct, frozen=True):
    """A file of `clusters/`."""

    cluster: ClusterSheet


def sheets() -> Mapping[str, ClusterSheet]:
    found = sorted((f for f in files(__name__).iterdir() if f.name.endswith(".toml")), key=str)
    return {
        file.name.removesuffix(".toml"): decode(
            tomllib.loads(file.read_text(encoding="utf-8")), ClusterFile
        ).cluster
        for file in found
    }


class ClusterConfig(Struct, frozen=True):
    """One cluster: the label `cluster` of its nodes (empty for nodes without one), and a sheet or
    the bytes per second between its halves, both directions together."""

    name: str = ""
    sheet: str = ""
    bisection_bytes_per_second: Rate | None = None

    def __post_init__(self) -> None:
        known = ", ".join(sheets())
        if self.sheet and self.sheet not in sheets():
            raise Mismatch("sheet", repr(self.sheet), f"one of {known}")
        if not self.sheet and self.bisection_bytes_per_second is None:
            raise Mismatch("sheet", "missing", f"one of {known}, or bisection_bytes_per_second")

    @property
    def bisection(self) -> float:
        return self.bisection_bytes_per_second or sheets()[self.sheet].bytes_per_second


class ClustersConfig(Section, frozen=True):
    """Every cluster whose network is known."""

    table = ""
    cluster: tuple[ClusterConfig, ...] = ()

    @property
    def bisections(self) -> Mapping[str, float]:
        return {one.name: one.bisection for one in self.cluster}
