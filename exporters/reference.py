"""Generates METRICS.md, which lists the meaning and the origin of every metric."""

from collections.abc import Iterable
from pathlib import Path

from agent.catalogue import EXPORTED
from agent.metrics import beside
from agent.model import Kind, Metric

_WORDS = beside(__file__)
HEADER: list[str] = _WORDS["header"]
SIGNALS = "Signals"
TEMPLATE = Path(__file__).with_name("METRICS.template.md")


def reference(metrics: Iterable[Metric] = EXPORTED) -> str:
    """Return the text of METRICS.md. Each subsystem has a table of its metrics, sorted by name."""
    groups: dict[str, list[Metric]] = {}
    for metric in sorted({metric.name: metric for metric in metrics}.values(), key=str):
        word = metric.name.split("_")[1:2] or [metric.name]
        title = _WORDS["titles"].get(word[0], word[0].capitalize())
        groups.setdefault(SIGNALS if metric.kind is Kind.INTERNAL else title, []).append(metric)
    lines = []
    for title in sorted(groups, key=lambda title: (title == SIGNALS, title.lower())):
        opening = [_WORDS["signals"], ""] if title == SIGNALS else []
        rows = [HEADER, ["---"] * len(HEADER), *map(_cells, groups[title])]
        lines += [f"## {title}", "", *opening, *map(_row, rows), ""]
    return TEMPLATE.read_text(encoding="utf-8").replace("<!-- tables -->\n", "\n".join(lines))


def _cells(metric: Metric) -> list[str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    chosen = "" if metric.kind is Kind.INTERNAL else _WORDS["series"][metric.shown]
    return [f"`{metric.name}`", metric.kind.value, labels, chosen, metric.meaning, metric.origin]


def _row(texts: Iterable[str]) -> str:
    """Return a Markdown table row with escaped cells. In Markdown, a bar ends a cell, a line break
    ends the table, and an angle bracket begins a tag."""
    cells = (" ".join(t.split()).replace("|", "\\|").replace("<", "&lt;") for t in texts)
    return f"| {' | '.join(cells)} |"
