"""`dgx-telemetry report`: GPU-hours by use and loss, worst first."""

import argparse
import json
from collections.abc import Iterator, Sequence
from html import escape
from time import time

from agent.cli.options import settings_of
from agent.cli.running_agent import address_of
from agent.cli.table import UNKNOWN, local, number, prose, share, table, terminal_width
from agent.config.atomic_file import atomic_write
from agent.diagnosis.advice import ADVICE
from agent.diagnosis.job_watch import CostConfig
from agent.errors import BadInput
from agent.faults.promql import seconds as seconds_of
from agent.faults.records import REPORT_EVERY, SECONDS_RECORD
from agent.jobs.job import amount
from agent.model import BUSY, State
from agent.report.gpu_time import (
    HOUR,
    KWH,
    GpuTime,
    Report,
    as_csv,
    costs,
    document,
    together,
    words,
)
from agent.report.questions import (
    failed_scrapes,
    from_agent,
    from_hours,
    from_prometheus,
    price_of,
)
from exporters.settings import HttpConfig

MANY_FAILED = 0.01
"""Share of scrapes that failed from which a report says so."""

MOST_ROWS = 40
"""Rows of a table; files have all."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body{{font:15px/1.5 system-ui,sans-serif;margin:2em}}td,th{{padding:.2em .7em;text-align:left}}
</style></head><body><h1>{title}</h1><table>
{rows}
</table><p>{sums}</p></body></html>
"""


def run(arguments: argparse.Namespace) -> int:
    """Ask for the rows, print or write them, and end."""
    settings = settings_of(arguments)
    job = arguments.job or ""
    by = "job" if job or arguments.compare else arguments.by
    for flag, url in (("--prometheus", arguments.prometheus), ("--agent", arguments.agent)):
        if url == "":
            raise BadInput(f"{flag} is empty, expected http://HOST:PORT")
    since, source, rows = _rows(arguments, settings[HttpConfig], by)
    if not rows:
        raise BadInput(_nothing(arguments))
    asked = arguments.prometheus and not job  # scrapes do not explain the loss of a job
    failed = failed_scrapes(arguments.prometheus, arguments.since) if asked else 0.0
    price = settings[CostConfig].gpu_hour or price_of(
        arguments.prometheus, arguments.agent or address_of(settings[HttpConfig]), arguments.since
    )
    report = Report(by, since, source, price, rows, failed)
    if arguments.html:
        atomic_write(arguments.html, as_html(report).encode(), 0o644)
    elif arguments.json:
        print(json.dumps(document(report), indent=2))
    elif arguments.csv:
        print(as_csv(report), end="")
    elif arguments.compare:
        print("\n".join(compared(rows, report.price, terminal_width())))
    elif job:
        for row in rows:  # a row for each user with a job of this name
            print("\n".join(efficiency(row, report.price, terminal_width())))
    else:
        print("\n".join(overview(report, terminal_width())))
    return 0


def compared(rows: Sequence[GpuTime], price: float | None, width: int) -> Iterator[str]:
    """Two jobs side by side: speed, GPU-hours, their yield, and their time by state."""
    kwh = [None if job.joules is None else job.joules / KWH for job in rows]
    costs = [job.cost(price) for job in rows]
    figures: list[tuple[str, list[float | None], str]] = [
        ("steps a second", [job.rate for job in rows], ".3g"),
        ("GPU-hours", [job.total / HOUR for job in rows], ".3g"),
        ("at work", [job.goodput.at_work for job in rows], ".1%"),
        ("tensor throughput at work", [job.goodput.of_peak for job in rows], ".1%"),
        ("kWh", kwh, ".3g"),
        ("cost", costs, ".2f"),
    ]
    for pair in sorted({pair for job in rows for pair in job.seconds}):
        shares = [job.seconds.get(pair, 0.0) / job.total for job in rows]
        if pair != BUSY and max(shares) >= 0.005:
            figures.append((words(pair), [*shares], ".1%"))
    lines = []
    for what, (before, after), form in figures:
        texts = (UNKNOWN if one is None else f"{one:{form}}" for one in (before, after))
        change = f"{100 * (after / before - 1):+.0f} %" if before and after is not None else UNKNOWN
        lines.append((what, *texts, change))
    yield from table(("", *(job.name for job in rows), "change"), lines, width=width)


def _rows(
    arguments: argparse.Namespace, here: HttpConfig, by: str
) -> tuple[str, str, tuple[GpuTime, ...]]:
    """The start, the source, and the rows; of two jobs to compare a row each. Raises BadInput."""
    if not arguments.compare:
        return _asked(arguments, here, by, arguments.job or "")
    found = [_asked(arguments, here, by, job) for job in arguments.compare]
    for job, (*_, rows) in zip(arguments.compare, found, strict=True):
        if not rows:
            raise BadInput(f"nothing is known of job {job}")
    return *found[0][:2], tuple(rows[0] for *_, rows in found)


def _asked(
    arguments: argparse.Namespace, here: HttpConfig, by: str, job: str
) -> tuple[str, str, tuple[GpuTime, ...]]:
    """The start, the source, and the rows of Prometheus or the agent; raises NoAnswer."""
    if arguments.prometheus:
        rows = from_prometheus(arguments.prometheus, arguments.since, by, job)
        return f"last {arguments.since}", "Prometheus", rows
    url = arguments.agent or address_of(here)
    first, rows = (0.0, ()) if job else from_hours(url, arguments.since, by, "")
    if rows:
        return counted_from(arguments.since, time(), first), "one agent's hourly sums", rows
    # the receipt of a job says more; and nameless jobs are in no hour
    rows = from_agent(url, by, job) or from_hours(url, "7d", by, job)[1]
    return "jobs that this agent remembers", "one agent", rows


def counted_from(since: str, now: float, recorded: float = 0.0) -> str:
    """Return the recorded hours that are counted: sums of hours begin with a whole hour."""
    first = (now - seconds_of(since)) // HOUR * HOUR
    words = "recorded since" if recorded > first else f"last {since} in whole hours, from"
    at = local(max(first, recorded))
    return f"{words} {at:%Y-%m-%d %H:%M}"


def _nothing(arguments: argparse.Namespace) -> str:
    if arguments.job:
        return f"nothing is known of job {arguments.job}"
    named = (
        "" if arguments.by == "node" else ", and let agents name jobs (`info = true` below [job])"
    )
    if arguments.prometheus:
        asked = f"no {SECONDS_RECORD.name} within {arguments.since}"
        cure = f"load the rules of dgx-report.yaml, which need {REPORT_EVERY} of samples"
        return f"{asked}: {cure}{named}"
    return f"this agent has watched no job yet: wait for one{named}"


HEADER = "GPU-h", "lost", "of it", "exposed", "busy", "idle", "worst", "kWh", "cost"


def overview(report: Report, width: int) -> Iterator[str]:
    """A table, and the sum below it."""
    yield from prose(_title(report), width, indent="")
    rows = [_row(row, report.price) for row in report.rows[:MOST_ROWS]]
    yield from table((report.by, *HEADER), rows, width=width)
    if len(report.rows) > MOST_ROWS:
        yield f"  and {len(report.rows) - MOST_ROWS} more: --csv, --json or --html has all"
    for line in _sums(report):
        yield from prose(line, width, indent="")


def as_html(report: Report) -> str:
    """The same as a page without any other file."""
    cells = [(report.by, *HEADER), *(_row(row, report.price) for row in report.rows)]
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in cells)
    sums = "<br>".join(map(escape, _sums(report)))
    lines = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return PAGE.format(title=escape(_title(report)), rows=lines, sums=sums)


def _title(report: Report) -> str:
    return f"GPU-hours by {report.by}, {report.since}, from {report.source}; most lost first"


def _sums(report: Report) -> Iterator[str]:
    total, lost = (sum(r.total for r in report.rows), sum(r.lost for r in report.rows))
    lost_text = f"{amount(lost / HOUR)} lost ({share(lost / total)})"
    yield f"together {amount(total / HOUR)} GPU-hours, {lost_text}"
    yield costs(report.rows, report.price)
    yield str(together(report.rows))
    if report.failed >= MANY_FAILED:
        yield f"{share(report.failed)} of the scrapes failed: no row contains that time"


def _row(row: GpuTime, price: float | None) -> tuple[str, ...]:
    apart = (State.COMMUNICATING, State.BUSY, State.IDLE)
    shares = (row.lost, *(row.of(state) for state in apart))
    return (
        " ".join(filter(None, (row.name, *row.about.values()))),
        amount(row.total / HOUR),
        amount(row.lost / HOUR),
        *(share(part / row.total) for part in shares),
        words(row.worst),
        UNKNOWN if row.joules is None else amount(row.joules / KWH),
        number(row.cost(price), digits=2),
    )


def efficiency(row: GpuTime, price: float | None, width: int) -> Iterator[str]:
    """A job, for its user: the use of its GPUs, and the remedies."""
    about = ", ".join(f"{name} {value}" for name, value in row.about.items() if value)
    name = row.name if row.name.startswith("job ") else f"job {row.name}"
    yield name[0].upper() + name[1:] + (f" ({about})" if about else "")
    busy = share(row.of(State.BUSY) / row.total)
    yield f"GPU-hours: {amount(row.total / HOUR)}, of these busy {busy}"
    spent = sorted(row.seconds.items(), key=lambda item: -item[1])
    rows = [(words(p), amount(s / HOUR), share(s / row.total)) for p, s in spent if s >= 18.0]
    yield from table(("state", "GPU-hours", "share"), rows, width=width)
    yield f"Goodput: {row.goodput}"
    if row.joules is not None:
        yield f"Energy: {amount(row.joules / KWH)} kWh"
    yield from prose(costs([row], price), width, indent="")
    if row.receipt:
        yield from prose(f"Its receipt: {row.receipt}", width)
    if row.worst and row.lost >= 0.03 * row.total:
        yield from prose(f"What to do: {row.advice or ADVICE[row.worst]}", width)
