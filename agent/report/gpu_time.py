"""GPU-seconds by cluster, node, job, user and so on: rows, the largest loss first. Pure."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.errors import encodable
from agent.jobs.job import Goodput, amount, percent
from agent.model import LOST_STATES, Cause, Pair, State, time_in

Document = dict[str, Any]

JOB_LABELS = ("job_id", "user", "partition", "account")
LABELS = {
    "cluster": ("cluster",),
    "node": ("instance", "cluster"),
    "job": (*JOB_LABELS, "cluster"),
    "user": ("user",),
    "account": ("account",),
    "namespace": ("namespace",),
}
"""Groupings of a report, and the labels of each, first the name: two clusters may have nodes and
jobs of the same name."""

IN_NAMESPACE = "([^/]+)/.+"
"""Kubernetes names a job NAMESPACE/POD."""

HARDWARE = ("cluster", "node")
"""Groupings by hardware, which have hours without a job too."""

HOUR, KWH = 3600.0, 3.6e6
MOST_CAUSES = 4
"""Causes of lost time that a sentence names; the rest are summed up."""

LEAST_SHARE = 0.01
"""Part of all hours from which a row is named for its share."""

NO_PRICE = "No cost: no price of a GPU-hour is configured (`gpu_hour` below [cost])."
MANY_PRICES = (
    "No cost: nodes have different prices of a GPU-hour (`gpu_hour` below [cost] sets one)."
)


class Price(NamedTuple):
    """Price of a GPU-hour, 0 if none is known, None if nodes differ; the currency may be empty."""

    gpu_hour: float | None = 0.0
    currency: str = ""

    def text(self, cost: float | None) -> str:
        """`12.00 EUR`; a dash if the cost is not known."""
        return "-" if cost is None else f"{cost:,.2f} {self.currency}".rstrip()


class GpuTime(NamedTuple):
    """GPU-seconds by state and cause of a row; `joules` is None if the energy is not known, and so
    is `tensor`, seconds at the peak of the tensor cores. Of a job `about` has its labels, `receipt`
    the agent's report on it, `rate` its steps a second. Of a node some hours are `unassigned`:
    those without a process."""

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
    """Rows, the largest loss first, from `begin` to `end` (wall time, s). `covered` is the share of
    the GPUs' time in between that was counted, None if unknown; `failed` is the share of scrapes
    that failed, 0 if unknown; `before` is the share lost in the span before, None if unknown."""

    by: str
    begin: float
    end: float
    covered: float | None
    source: str
    price: Price
    rows: tuple[GpuTime, ...]
    failed: float = 0.0
    before: float | None = None


def cost_line(rows: Sequence[GpuTime], price: Price) -> str:
    """Return the cost of rows and of their losses, with the price of an hour."""
    if not price.gpu_hour:
        return MANY_PRICES if price.gpu_hour is None else NO_PRICE
    total = sum(row.cost(price.gpu_hour) or 0.0 for row in rows)
    lost = sum(row.lost for row in rows) * price.gpu_hour / HOUR
    each = price.text(price.gpu_hour)
    return f"Cost {price.text(total)} ({each} per GPU-hour), of which lost {price.text(lost)}."


def summary(report: Report) -> Iterator[str]:
    """Yield sentences for readers who read no table: given and at work; lost; held; do first."""
    rows, every = report.rows, together(report.rows)
    all_of = sum(row.total for row in rows)
    text = f"{amount(every.given / HOUR)} of {amount(all_of / HOUR)} GPU-hours were given to jobs"
    if every.at_work is not None:
        text += f"; in {percent(every.at_work)} of these the GPUs worked"
        text += "" if every.of_peak is None else f", at {percent(every.of_peak)} of tensor peak"
    rest = all_of - every.given
    yield f"{text}; no job had {_priced(rest, report.price)}." if rest else f"{text}."
    pairs: Counter[Pair] = Counter()
    for row in rows:
        pairs.update({pair: part for pair, part in row.seconds.items() if pair[0] in LOST_STATES})
    lost, held = pairs.total(), sum(row.of(State.HELD) for row in rows)
    if lost:
        causes = pairs.most_common(MOST_CAUSES)
        parts = [f"{words(pair)} {amount(part / HOUR)}" for pair, part in causes]
        if rest := lost - sum(part for _, part in causes):
            parts.append(f"other causes {amount(rest / HOUR)}")
        share = f"{percent(lost / all_of)} of all"
        if report.before is not None:
            share += f" ({percent(report.before)} in the same span before)"
        yield f"Lost: {_priced(lost, report.price)}, {share}: {', '.join(parts)}."
    else:
        yield "No time was lost."
    if held:
        most_held = max(rows, key=lambda row: row.of(State.HELD))
        hours = amount(most_held.of(State.HELD) / HOUR)
        first = f"longest by {report.by} {most_held.name}: {hours}, to reclaim first"
        yield f"Of the lost, held without work: {_priced(held, report.price)}; {first}."
    much = [row for row in rows if row.total >= LEAST_SHARE * all_of]
    by_share = max(much, key=lambda row: row.lost / row.total, default=None)
    if by_share and by_share.lost and by_share is not rows[0]:
        hours = f"{amount(by_share.lost / HOUR)} of its {amount(by_share.total / HOUR)} GPU-hours"
        yield f"Largest share: {report.by} {by_share.name} lost {hours}."
    if rows and (worst := rows[0].worst):
        hours = amount(rows[0].seconds[worst] / HOUR)
        where = f"{report.by} {rows[0].name}, {words(worst)} for {hours} GPU-hours"
        yield f"First to look at: {where}. {rows[0].advice or ADVICE[worst]}"


def _priced(seconds: float, price: Price) -> str:
    hours = f"{amount(seconds / HOUR)} GPU-hours"
    return f"{hours} ({price.text(seconds / HOUR * price.gpu_hour)})" if price.gpu_hour else hours


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
    """The report for programs; unknown values are null."""
    return {
        "by": report.by,
        "begin": report.begin,
        "end": report.end,
        "covered_share": report.covered,
        "source": report.source,
        "price_of_gpu_hour": report.price.gpu_hour or None,
        "currency": report.price.currency or None,
        "failed_scrapes_share": report.failed,
        "lost_share_before": report.before,
        "summary": list(summary(report)),
        "rows": [row_document(row, report.price.gpu_hour) for row in report.rows],
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
        "held_gpu_hours": row.of(State.HELD) / HOUR,
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
    *("name", "cluster", "user", "partition", "account", "gpu_hours", "given_gpu_hours"),
    *("lost_gpu_hours", "held_gpu_hours", "exposed_gpu_hours", "idle_gpu_hours"),
    *("lost_share", "busy_share"),
    *("tensor_throughput", "worst", "kwh", "cost", "cost_lost"),
)


def as_csv(report: Report) -> str:
    """A line per row; unknown values are empty. A cell that a spreadsheet would take for a formula
    gets an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        cells = row_document(row, report.price.gpu_hour).items()
        formula = {name: str(value)[:1] in "=+-@\t\r" for name, value in cells if value}
        writer.writerow({name: f"'{v}" if formula.get(name) else v for name, v in cells})
    return text.getvalue()


def words(pair: Pair | None) -> str:
    """A state and its cause; a dash if nothing was lost."""
    return SUMMARIES[pair] if pair else "-"
