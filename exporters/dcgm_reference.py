"""DCGM.md: every name of `/metrics/dcgm` with what it is made of; what is not exported, and why."""

from pathlib import Path

from exporters.dcgm import DcgmField, DcgmName, table
from exporters.reference import row

TEMPLATE = Path(__file__).with_name("DCGM.template.md")
TABLES = "<!-- tables -->\n"
"""Where they stand in the template."""

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
"""What a label of `dcgm.toml` may say, in words."""

NAMES_HEADER = ("Before 4.9", "Type, unit", "From 4.9", "Type, unit", "Made of", "Means")
LABELS_HEADER = ("Label", "Names", "Says")
UNSUPPORTED_HEADER = ("Not exported", "Why")


def page() -> str:
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
        ("Names", NAMES_HEADER, [cells(one) for one in names.field]),
        ("Labels", LABELS_HEADER, labels),
        ("What is not exported", UNSUPPORTED_HEADER, unsupported),
    )
    parts = []
    for title, header, rows in sections:
        lines = [row(header), row(["---"] * len(header)), *map(row, rows), ""]
        parts.append("\n".join([f"## {title}", "", *lines]))
    return TEMPLATE.read_text(encoding="utf-8").replace(TABLES, "\n".join(parts))


def cells(one: DcgmField) -> tuple[str, ...]:
    where = ",".join(
        f'{name}{"=~" if "|" in value else "="}"{value}"' for name, value in one.where.items()
    )
    made = " + ".join(f"`{name}{{{where}}}`" if where else f"`{name}`" for name in one.metrics)
    if one.rate:
        made += ", a second"
    if one.instance:
        made += f"; of an instance `{one.instance}`"
    return (*generation(one.before), *generation(one.since), made, one.what)


def generation(one: DcgmName | None) -> tuple[str, str]:
    return (f"`{one.name}`", f"{one.kind}, {one.unit}") if one else ("-", "")
