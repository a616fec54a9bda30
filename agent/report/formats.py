"""A report as CSV and as one HTML page that needs nothing else."""

import csv
import io
from html import escape

from agent.diagnosis.advice import ADVICE
from agent.model import State
from agent.report.gpu_time import HOUR, KWH, GpuTime, Report, costs, row_document, words

COLUMNS = (
    *("name", "user", "partition", "account", "gpu_hours", "lost_gpu_hours", "exposed_gpu_hours"),
    *("idle_gpu_hours", "lost_share", "busy_share", "worst", "kwh", "cost", "cost_lost"),
)
COLOURS = {
    State.BUSY: "#3f8f4f",
    State.COMMUNICATING: "#3b78c3",
    State.STARVED: "#d9822b",
    State.THROTTLED: "#b5402d",
    State.HELD: "#8a63b5",
    State.HUNG: "#7a1f1f",
    State.IDLE: "#a9b0b7",
}
WIDTH, HEIGHT = 480, 18
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;
color:#1b1f23;background:#fff}table{border-collapse:collapse}
td,th{padding:.25em .7em;text-align:left;
border-bottom:1px solid #d9dde1;vertical-align:middle}.n{text-align:right}
span.k{display:inline-block;width:.9em;height:.9em;margin:0 .35em 0 1em}
@media (prefers-color-scheme:dark){body{color:#e6e9ec;background:#15181b}
td,th{border-color:#3a4047}}
"""


def as_csv(report: Report) -> str:
    """One line a row; what is not known is empty. A cell that a spreadsheet would take for a
    formula gets an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        cells = row_document(row, report.price)
        writer.writerow({name: _safe(value) for name, value in cells.items()})
    return text.getvalue()


def _safe(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def as_html(report: Report) -> str:
    """The page: a bar of states for each row, its figures beside it. Of a single row each cause
    too, and what to do about the worst."""
    title = f"GPU-hours by {report.by}, {report.since}"
    heads = (
        *(report.by, "where its time went", "GPU-hours", "lost", "of it", "exposed", "worst"),
        *("kWh", "cost"),
    )
    key = "".join(
        f'<span class="k" style="background:{colour}"></span>{state.value}'
        for state, colour in COLOURS.items()
    )
    cells = "".join(f"<th>{escape(head)}</th>" for head in heads)
    rows = "\n".join(_row(row, report.price) for row in report.rows)
    total, lost = (sum(r.total for r in report.rows), sum(r.lost for r in report.rows))
    together = f"Together {total / HOUR:.2f} GPU-hours, {lost / HOUR:.2f} lost ({lost / total:.0%})"
    more = _causes(report.rows[0]) if len(report.rows) == 1 else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>From {escape(report.source)}, most lost first.</p>"
        f"<p>{key}</p><table><thead><tr>{cells}</tr></thead><tbody>\n{rows}\n</tbody></table>"
        f"<p>{together}. {costs(total, lost, report.price)}</p>{more}</body></html>\n"
    )


def _row(row: GpuTime, price: float) -> str:
    about = " ".join(value for value in row.about.values() if value)
    name = escape(row.name) + (f"<br><small>{escape(about)}</small>" if about else "")
    cost = f"{row.total / HOUR * price:.2f}" if price else "-"
    lost, of_it = f"{row.lost / HOUR:.2f}", f"{row.lost / row.total:.0%}"
    exposed = f"{row.of(State.COMMUNICATING) / HOUR:.2f}"
    figures = (f"{row.total / HOUR:.2f}", lost, of_it, exposed)
    cells = [f"<td>{name}</td><td>{_bar(row)}</td>"]
    cells += (f'<td class="n">{figure}</td>' for figure in figures)
    cells += [f"<td>{escape(words(row.worst))}</td>"]
    cells += (f'<td class="n">{figure}</td>' for figure in (_kwh(row.joules), cost))
    return f"<tr>{''.join(cells)}</tr>"


def _kwh(joules: float | None) -> str:
    return "-" if joules is None else f"{joules / KWH:.2f}"


def _causes(row: GpuTime) -> str:
    spent = sorted(row.seconds.items(), key=lambda item: -item[1])
    rows = "".join(
        f'<tr><td>{escape(words(pair))}</td><td class="n">{seconds / HOUR:.2f}</td>'
        f'<td class="n">{seconds / row.total:.0%}</td>'
        f'<td class="n">{_kwh(row.joules_by.get(pair))}</td></tr>'
        for pair, seconds in spent
        if seconds >= HOUR / 200  # which rounds to 0.01
    )
    heads = "".join(f"<th>{head}</th>" for head in ("state", "GPU-hours", "share", "kWh"))
    advice = ADVICE.get(row.worst) if row.worst else None
    to_do = f"<p>What to do: {escape(advice)}</p>" if advice else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{to_do}"


def _bar(row: GpuTime) -> str:
    parts, at = [], 0.0
    for state, colour in COLOURS.items():
        share = row.of(state) / row.total
        if share > 0:
            parts.append(
                f'<rect x="{at * WIDTH:.1f}" width="{share * WIDTH:.1f}" height="{HEIGHT}" '
                f'fill="{colour}"><title>{state.value} {share:.1%}</title></rect>'
            )
        at += share
    label = ", ".join(f"{s.value} {row.of(s) / row.total:.0%}" for s in COLOURS if row.of(s))
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}">{"".join(parts)}</svg>'
    )
