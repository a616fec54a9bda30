"""The `dgx-telemetry report` command. It reports used and lost GPU-hours."""

import argparse
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from pathlib import Path

from agent.cli.options import settings_of
from agent.cli.running_agent import address_of
from agent.cli.table import UNKNOWN, local, prose, share, table, terminal_width
from agent.config.atomic_file import atomic_write, check_target
from agent.config.settings import Settings
from agent.diagnosis.advice import ADVICE
from agent.diagnosis.job_watch import CostConfig
from agent.errors import BadInput
from agent.faults.records import REPORT_EVERY, SECONDS_RECORD
from agent.jobs.job import amount, percent
from agent.model import BUSY, LOST_STATES, State
from agent.report import gpu_time
from agent.report.gpu_time import HOUR, KWH, GpuTime, Price, Report
from agent.report.questions import HARDWARE, agent_report, prometheus_report
from exporters.settings import HttpConfig

MANY_LACK, MOST_NODES = 0.05, 5
"""The report names up to MOST_NODES nodes without data for at least MANY_LACK of their time."""

MOST_ROWS = 40
"""Maximum rows of a table on the HTML page, which fits on one sheet. CSV and JSON have all rows."""

TOP = 3
"""Number of summary sentences above the table. The other sentences are below the table."""

POINTS = ".1%"
"""Format of shares in a comparison of jobs, whose changes are in percentage points."""


def run(arguments: argparse.Namespace) -> int:
    """Create a report of GPU-hours, and print it or write it to a file."""
    settings = settings_of(arguments)
    if arguments.by == "cluster" and not arguments.prometheus:
        raise BadInput("--by cluster needs --prometheus: an agent knows its own node alone")
    report = _report(arguments, settings)
    if arguments.html:
        page, path = as_html(report).encode(), arguments.html
        own = page[: page.index(b" by ")]  # every report begins with it
        if (found := check_target(path)) and found.st_size and own not in path.read_bytes():
            raise BadInput(f"{path}: exists, expected a free name or an earlier report")
        atomic_write(path, page, 0o644)
    elif arguments.json:
        print(json.dumps(gpu_time.document(report), indent=2))
    elif arguments.csv:
        print(gpu_time.as_csv(report), end="")
    elif arguments.compare:
        print("\n".join(compared(report.rows, report.price, terminal_width())))
    elif arguments.job:
        for row in report.rows:  # one row per user, because users may have jobs with the same name
            print("\n".join(efficiency(row, report.price, terminal_width())))
    else:
        print("\n".join(overview(report, terminal_width())))
    return 0


def compared(rows: Sequence[GpuTime], price: Price, width: int) -> Iterator[str]:
    """Yield the lines of a comparison of two jobs: speed, GPU-hours, goodput, energy, cost, and
    time by state. Changes of shares are in percentage points, not relative."""
    kwh = [None if job.joules is None else job.joules / KWH for job in rows]
    costs = [None if job.unpriced else job.cost() for job in rows]
    figures: list[tuple[str, list[float | None], str]] = [
        ("steps a second", [job.rate for job in rows], ".3g"),
        ("GPU-hours", [job.total / HOUR for job in rows], ".3g"),
        ("at work", [job.goodput.at_work for job in rows], POINTS),
        ("tensor throughput at work", [job.goodput.of_peak for job in rows], POINTS),
        ("kWh", kwh, ".3g"),
        (f"cost {price.currency}".rstrip(), costs, ".2f"),
    ]
    for pair in sorted({pair for job in rows for pair in job.seconds}):
        shares = [job.seconds.get(pair, 0.0) / job.total for job in rows]
        if pair != BUSY and max(shares) >= 0.005:
            figures.append((gpu_time.words(pair), [*shares], POINTS))
    lines = []
    for name, (before, after), form in figures:
        texts = (UNKNOWN if one is None else f"{one:{form}}" for one in (before, after))
        change = UNKNOWN
        if before is not None and after is not None and form == POINTS:
            change = f"{100 * (after - before):+.0f} points"
        elif before and after is not None:
            change = f"{100 * (after / before - 1):+.0f} %"
        lines.append((name, *texts, change))
    yield from table(("", *(job.name for job in rows), "change"), lines, width=width)


def _report(arguments: argparse.Namespace, settings: Settings) -> Report:
    """Return the requested report, with a row for each compared job, or raise BadInput."""
    if not arguments.compare:
        report = _asked(arguments, settings, arguments.job or "")
        if not report.rows:
            raise BadInput(_nothing(arguments))
        return report
    found = [_asked(arguments, settings, job) for job in arguments.compare]
    for job, report in zip(arguments.compare, found, strict=True):
        if not report.rows:
            raise BadInput(f"nothing is known of job {job}")
    return found[0]._replace(rows=tuple(report.rows[0] for report in found))


def _asked(arguments: argparse.Namespace, settings: Settings, job: str) -> Report:
    """Query Prometheus or an agent, and return the report. The price in the local configuration has
    precedence. Raise NoAnswer if the server does not respond."""
    cost, by, since = settings[CostConfig], "job" if job else arguments.by, arguments.since
    known = Price((cost.gpu_hour,), cost.currency) if cost.gpu_hour else None
    if arguments.prometheus:
        return prometheus_report(arguments.prometheus, since, by, job, known)
    agent = arguments.agent or address_of(settings[HttpConfig])
    return agent_report(agent, since, by, job, known)


def _nothing(arguments: argparse.Namespace) -> str:
    if arguments.job:
        return f"nothing is known of job {arguments.job}"
    named = ", and let agents name jobs (`info = true` below [job])"
    named = "" if arguments.by in HARDWARE else named
    if arguments.prometheus:
        asked = f"no {SECONDS_RECORD} within {arguments.since}"
        cure = f"load the rules of dgx-report.yaml, which need {REPORT_EVERY} of samples"
        return f"{asked}: {cure}{named}"
    return f"this agent has watched no job yet: wait for one{named}"


LEGEND = {
    "counted": "of the time of its GPUs; the rest is not known",
    "at work": "of the hours given",
    "of peak": "of the tensor peak, while at work",
    "held": "without work, part of lost",
    "exposed": "communication that no work hides, not part of lost",
    "idle": "without process or request, not part of lost",
    "kWh": "of the GPUs",
    UNKNOWN: "not measured",
}
"""Explanations of column titles and of the dash. Only those in the table are printed."""


def _table(report: Report) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the column titles of the table, and the cells of its first MOST_ROWS rows."""
    hours, lost = report.hours, f"lost {report.price.currency or 'cost'}"
    costs = {lost: lambda row: gpu_time.money([row], row.cost(LOST_STATES), Price())}
    parts = report.nodes if report.by == "node" else {}
    counts = {"counted": lambda row: share(parts[_name(row)][0] / parts[_name(row)][1])}
    columns: Mapping[str, Callable[[GpuTime], str]] = {
        report.by: _name,
        **(counts if {_name(row) for row in report.rows} <= parts.keys() else {}),
        "GPU-h": lambda row: hours(row.total),
        "given": lambda row: hours(row.goodput.given),
        "at work": lambda row: share(row.goodput.at_work),
        "of peak": lambda row: share(row.goodput.of_peak),
        "lost": lambda row: hours(row.lost),
        "of all": lambda row: share(row.lost / row.total),
        "held": lambda row: hours(row.of(State.HELD)),
        **(costs if any(row.costs for row in report.rows) else {}),
        "exposed": lambda row: share(row.of(State.COMMUNICATING) / row.total),
        "idle": lambda row: share(row.of(State.IDLE) / row.total),
        "kWh": lambda row: UNKNOWN if row.joules is None else amount(row.joules / KWH),
        "largest loss": lambda row: gpu_time.words(row.worst),
    }
    rows = report.rows[:MOST_ROWS]
    return [*columns], [[cell(row) for cell in columns.values()] for row in rows]


DISPENSABLE = "kWh", "exposed", "idle", "of peak", "given", "of all", "held", "at work"
"""Columns to omit if the terminal is too narrow, in this order."""


def overview(report: Report, width: int) -> Iterator[str]:
    """Yield the lines of the title, the summary, the table, and the notes."""
    yield from prose(_title(report), width, indent="")
    yield ""
    for sentence in islice(gpu_time.summary(report), TOP):
        yield from prose(sentence, width, indent="", hanging="  ")
    yield ""
    header, rows = _table(report)
    lines = table(header, rows, header[1:-1], width, header[:1], spare=DISPENSABLE)
    yield from lines
    for note in _notes(report, lines[0], rows):
        yield from prose(note, width, indent="")


def as_html(report: Report) -> str:
    """Return the report as a self-contained HTML page that fits on one sheet when printed."""
    header, rows = _table(report)
    lines = [
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in [("th", header), *(("td", row) for row in rows)]
    ]
    sentences = [f"<li>{escape(one)}</li>" for one in islice(gpu_time.summary(report), TOP)]
    page = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return page.format(
        title=escape(_title(report)),
        sentences="\n".join(sentences),
        rows="\n".join(f"<tr>{line}</tr>" for line in lines),
        sums="<br>".join(map(escape, _notes(report, header, rows))),
    )


def _title(report: Report) -> str:
    begin, end = (f"{local(at):%Y-%m-%d %H:%M %Z}" for at in (report.begin, report.end))
    part = "" if report.covered is None else percent(report.covered)
    known = f"{part} of the GPUs' time counted, " if part else ""
    return f"GPU-hours by {report.by}, {begin} to {end}, {known}from {report.source}"


def _notes(report: Report, titles: Container[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the rest of the summary, the legend of the table, and the totals."""
    yield from islice(gpu_time.summary(report), TOP, None)
    shown = [word for word in LEGEND if word in titles or any(word in row for row in rows)]
    if legend := "; ".join(f"{word}: {LEGEND[word]}" for word in shown):
        yield f"{legend}."
    if len(report.rows) > MOST_ROWS:
        yield f"and {len(report.rows) - MOST_ROWS} more rows: --csv or --json has all"
    kwh = gpu_time.known_sum(row.joules for row in report.rows)
    if kwh is not None:
        yield f"Energy of the GPUs: {amount(kwh / KWH)} kWh."
    yield gpu_time.cost_line(report.rows, report.price)
    unknown = 0.0 if report.covered is None else 1 - report.covered
    if unknown < 0.01:
        return
    lacking = sorted(
        (part - whole, f"{name} {report.hours(part)} of {report.hours(whole)}")
        for name, (part, whole) in report.nodes.items()
        if whole - part >= MANY_LACK * whole
    )
    named = [text for _, text in lacking[:MOST_NODES]]
    if len(lacking) > MOST_NODES:
        named.append(f"{len(lacking) - MOST_NODES} more nodes")
    nodes = f". Counted in part: {', '.join(named)} GPU-hours" if named else ""
    yield f"Not known: {share(unknown)} of the GPUs' time; no row contains it{nodes}."


def _name(row: GpuTime) -> str:
    return " ".join(filter(None, (row.name, *row.about.values())))


def efficiency(row: GpuTime, price: Price, width: int) -> Iterator[str]:
    """Yield the lines on one job: GPU-hours by state, goodput, energy, cost, and advice."""
    about = ", ".join(f"{name} {value}" for name, value in row.about.items() if value)
    name = row.name if row.name.startswith("job ") else f"job {row.name}"
    yield name[0].upper() + name[1:] + (f" ({about})" if about else "")
    busy = share(row.of(State.BUSY) / row.total)
    yield f"GPU-hours: {amount(row.total / HOUR)}, of these busy {busy}"
    spent = sorted(row.seconds.items(), key=lambda item: -item[1])
    long = ((gpu_time.words(pair), part) for pair, part in spent if part >= 18.0)
    rows = [(words, amount(part / HOUR), share(part / row.total)) for words, part in long]
    yield from table(("state", "GPU-hours", "share"), rows, width=width)
    yield f"Goodput: {row.goodput}"
    if row.joules is not None:
        yield f"Energy: {amount(row.joules / KWH)} kWh"
    yield from prose(gpu_time.cost_line([row], price), width, indent="")
    if row.receipt:
        yield from prose(f"Its receipt: {row.receipt}", width)
    if row.worst and row.lost >= 0.03 * row.total:
        yield from prose(f"What to do: {row.advice or ADVICE[row.worst]}", width)
