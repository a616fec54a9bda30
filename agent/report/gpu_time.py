"""GPU-seconds by node, job, user or account: rows, the worst first. Pure."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.errors import encodable
from agent.jobs.job import Goodput
from agent.model import LOST_STATES, Cause, Pair, State, time_in

Document = dict[str, Any]

LABELS = {"node": "instance", "job": "job_id", "user": "user", "account": "account"}
"""Groupings of a report, and the label of each."""

JOB_LABELS = ("job_id", "user", "partition", "account")
HOUR, KWH = 3600.0, 3.6e6
NO_PRICE = "No cost: no price of a GPU-hour is configured (`gpu_hour` below [cost])."
MANY_PRICES = (
    "No cost: nodes have different prices of a GPU-hour (`gpu_hour` below [cost] sets one)."
)


class GpuTime(NamedTuple):
    """GPU-seconds by state and cause of a node, job, user or account; `joules` is None if the
    energy is not known, and so is `tensor`, seconds at the peak of the tensor cores. Of a job
    `about` has its labels, `receipt` the agent's report on it, `rate` its steps a second. Of a node
    some hours are `unassigned`: those without a process."""

    name: str
    seconds: Mapping[Pair, float]
    joules: float | None = None
    about: Mapping[str, str] = {}
    receipt: str = ""
    tensor: float | None = None
    rate: float | None = None
    unassigned: bool = False
    advice: str = ""  # the action for a job that hangs now
    paid: float | None = None  # cost of a job so far, as its agent counts it

    def cost(self, price: float | None) -> float | None:
        """Cost of all hours at so much each, or as the agent counts it; None without a price."""
        return (self.paid or self.total / HOUR * price) if price else None

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> Goodput:
        """Goodput of the row; the hours of a node without a process count as not allocated."""
        idle = self.seconds.get((State.IDLE, Cause.NONE), 0.0) if self.unassigned else 0.0
        return Goodput(self.total - idle, self.of(State.BUSY), self.tensor)

    @property
    def lost(self) -> float:
        """GPU-seconds in which a job made no progress."""
        return time_in(self.seconds, *LOST_STATES)

    def of(self, state: State) -> float:
        return time_in(self.seconds, state)

    @property
    def worst(self) -> Pair | None:
        lost = {
            pair: part for pair, part in self.seconds.items() if pair[0] in LOST_STATES and part > 0
        }
        return max(lost, key=lambda pair: lost[pair], default=None)


class Report(NamedTuple):
    """Rows, the worst first; `price` of a GPU-hour, 0 if no price is known, None if nodes differ;
    `since` and `source` in words; `failed` is the share of scrapes that failed, 0 if unknown."""

    by: str
    since: str
    source: str
    price: float | None
    rows: tuple[GpuTime, ...]
    failed: float = 0.0


def costs(rows: Sequence[GpuTime], price: float | None) -> str:
    """Return the cost of rows and of their losses, with the price of an hour."""
    if not price:
        return MANY_PRICES if price is None else NO_PRICE
    total = sum(row.cost(price) or 0.0 for row in rows)
    lost = sum(row.lost for row in rows) * price / HOUR
    return f"Cost {total:.2f} ({price:.2f} per GPU-hour), of which lost {lost:.2f}."


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None if no value is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def together(rows: Iterable[GpuTime]) -> Goodput:
    every = [row.goodput for row in rows]
    tensor = known_sum(one.tensor for one in every)
    return Goodput(sum(one.given for one in every), sum(one.worked for one in every), tensor)


def ordered(rows: Iterable[GpuTime]) -> tuple[GpuTime, ...]:
    """Return the rows with the largest loss of GPU-seconds first, then those idle for longest."""
    kept = (  # names of an agent or a file may hold anything: these are safe for a terminal
        row._replace(
            name=encodable(row.name), about={k: encodable(v) for k, v in row.about.items()}
        )
        for row in rows
        if row.total > 0
    )
    return tuple(sorted(kept, key=lambda row: (-row.lost, -row.of(State.IDLE), row.name)))


def pair_of(state: str, cause: str) -> Pair | None:
    """None if a newer agent exports a state that is not known here."""
    try:
        return State(state), Cause(cause)
    except ValueError:
        return None


def document(report: Report) -> Document:
    return {
        "by": report.by,
        "since": report.since,
        "source": report.source,
        "price_of_gpu_hour": report.price or None,
        "failed_scrapes_share": report.failed,
        "rows": [row_document(row, report.price) for row in report.rows],
    }


def row_document(row: GpuTime, price: float | None) -> Document:
    """A row; unknown values are null."""
    worst = row.worst
    return {
        "name": row.name,
        **row.about,
        **({"receipt": row.receipt} if row.receipt else {}),
        "gpu_hours": row.total / HOUR,
        "lost_gpu_hours": row.lost / HOUR,
        "lost_share": row.lost / row.total,
        "exposed_gpu_hours": row.of(State.COMMUNICATING) / HOUR,
        "idle_gpu_hours": row.of(State.IDLE) / HOUR,
        "busy_share": row.of(State.BUSY) / row.total,
        "gpu_hours_by_state": {
            f"{state}/{cause}": part / HOUR for (state, cause), part in sorted(row.seconds.items())
        },
        "worst": f"{worst[0]}/{worst[1]}" if worst else None,
        "advice": row.advice or (ADVICE.get(worst) if worst else None),
        "given_gpu_hours": row.goodput.given / HOUR,
        "tensor_throughput": row.goodput.of_peak,
        "goodput": str(row.goodput),
        "kwh": None if row.joules is None else row.joules / KWH,
        "cost": row.cost(price),
        "cost_lost": row.lost / HOUR * price if price else None,
    }


COLUMNS = (
    *("name", "user", "partition", "account", "gpu_hours", "lost_gpu_hours", "exposed_gpu_hours"),
    *("idle_gpu_hours", "lost_share", "busy_share", "worst", "kwh", "cost", "cost_lost"),
)


def as_csv(report: Report) -> str:
    """A line per row; unknown values are empty. A cell that a spreadsheet would take for a formula
    gets an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        cells = row_document(row, report.price).items()
        formula = {name: str(value)[:1] in "=+-@\t\r" for name, value in cells if value}
        writer.writerow({name: f"'{v}" if formula.get(name) else v for name, v in cells})
    return text.getvalue()


def words(pair: Pair | None) -> str:
    """A state and its cause; a dash if nothing was lost."""
    return SUMMARIES[pair] if pair else "-"
