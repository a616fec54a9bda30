"""METRICS.md: every metric with its meaning and its origin; DCGM.md: every name of `/metrics/dcgm`
with what it is made of, and what is not exported and why."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent.catalogue import EXPORTED
from agent.model import Kind, Metric
from exporters.dcgm import DcgmField, DcgmName, table

TITLES = {
    **{word: word.upper() for word in ("cpu", "gpu", "raid")},
    "bandwidth": "Data paths",
    "disk": "Disks",
    "infiniband": "InfiniBand",
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "nvswitch": "NVSwitch",
}
"""Titles of subsystems whose second word is not title enough."""
SIGNALS = "Signals"
SIGNALS_OPENING = (
    "Evidence for the diagnosis: in `/api/v1/snapshot`, never in `/metrics`, and free to change."
)
NODE_SERIES = Path(__file__).with_name("node_series.csv")
"""Number of series that tests have counted on simulated nodes."""
COST_HEADER = (
    *("System", "full", "small", "full without links", "small without links"),
    *("kB, full", "kB, small without links"),
)
HEADER = ("Name", "Type", "Labels", "Meaning", "Origin")
COSTS, TABLES = "<!-- costs -->\n", "<!-- tables -->\n"
"""Places in the templates."""


def node_series() -> list[list[str]]:
    """By system: its name, series by the settings, kB of a scrape; as COST_HEADER has them."""
    with NODE_SERIES.open(newline="") as file:
        return list(csv.reader(file))


def reference(metrics: Iterable[Metric] = EXPORTED) -> str:
    """The whole page: one table a subsystem, metrics in the order of their names."""
    groups: dict[str, list[Metric]] = {}
    for metric in sorted({metric.name: metric for metric in metrics}.values(), key=str):
        word = metric.name.split("_")[1:2] or [metric.name]
        title = TITLES.get(word[0], word[0].capitalize())
        groups.setdefault(SIGNALS if metric.kind is Kind.INTERNAL else title, []).append(metric)
    costs = [(f"`{name}`", *counts) for name, *counts in node_series()]
    tables = (
        _section(title, HEADER, map(_cells, groups[title]), SIGNALS_OPENING * (title == SIGNALS))
        for title in sorted(groups, key=lambda title: (title == SIGNALS, title.lower()))
    )
    text = _template("METRICS").replace(COSTS, "\n".join(_table(COST_HEADER, costs, "---:")))
    return text.replace(TABLES, "\n".join(tables))


def _template(name: str) -> str:
    return Path(__file__).with_name(f"{name}.template.md").read_text(encoding="utf-8")


def _section(
    title: str, header: Sequence[str], rows: Iterable[Iterable[str]], opening: str = ""
) -> str:
    return "\n".join([f"## {title}", "", *[opening, ""] * bool(opening), *_table(header, rows)])


def _table(header: Sequence[str], rows: Iterable[Iterable[str]], others: str = "---") -> list[str]:
    return [*map(row, (header, ["---", *[others] * (len(header) - 1)], *rows)), ""]


def _cells(metric: Metric) -> list[str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return [f"`{metric.name}`", metric.kind.value, labels, metric.meaning, metric.origin]


def row(texts: Iterable[str]) -> str:
    """A bar ends a cell, a line break ends the table, and an angle bracket begins a tag."""
    cells = (" ".join(t.split()).replace("|", "\\|").replace("<", "&lt;") for t in texts)
    return f"| {' | '.join(cells)} |"


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
"""Words for the values that a label of `dcgm.toml` may have."""

NAMES_HEADER = ("Before 4.9", "Type, unit", "From 4.9", "Type, unit", "Made of", "Means")


def dcgm_page() -> str:
    """The whole page."""
    names = table()
    generations = (("all", names.labels), ("old", names.labels_before), ("new", names.labels_since))
    labels = [
        (f"`{label}`", of, LABELS[says]) for of, some in generations for label, says in some.items()
    ]
    unsupported = [
        (", ".join(f"`{name}`" for name in one.names), one.why) for one in names.unsupported
    ]
    sections = (
        _section("Names", NAMES_HEADER, [dcgm_cells(one) for one in names.field]),
        _section("Labels", ("Label", "Names", "Says"), labels),
        _section("What is not exported", ("Not exported", "Why"), unsupported),
    )
    return _template("DCGM").replace(TABLES, "\n".join(sections))


def dcgm_cells(one: DcgmField) -> tuple[str, ...]:
    where = ",".join(
        f'{name}{"=~" if "|" in value else "="}"{value}"' for name, value in one.where.items()
    )
    made = " + ".join(f"`{name}{{{where}}}`" if where else f"`{name}`" for name in one.metrics)
    made += ", a second" * one.rate + f"; of an instance `{one.instance}`" * bool(one.instance)
    return (*generation(one.before), *generation(one.since), made, one.what)


def generation(one: DcgmName | None) -> tuple[str, str]:
    return (f"`{one.name}`", f"{one.kind}, {one.unit}") if one else ("-", "")
