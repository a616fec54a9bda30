"""Computes reports of GPU time and formats their parts. A row contains the GPU-seconds of a
cluster, node, job, or user. This module performs no I/O."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.errors import encodable
from agent.jobs.job import Goodput, amount, percent
from agent.model import BUSY, LOST_STATES, Cause, Pair, State, time_in

Document = dict[str, Any]

HOUR, KWH = 3600.0, 3.6e6
NO_JOB = State.IDLE, Cause.NONE
NO_PRICE = "No cost: no price of a GPU-hour is configured (`gpu_hour` below [cost])."


class Price(NamedTuple):
    """The prices per GPU-hour (`each`, lowest first), and their currency, which may be empty. If
    `each` is empty, `unknown` states the reason."""

    each: tuple[float, ...] = ()
    currency: str = ""
    unknown: str = NO_PRICE


class GpuTime(NamedTuple):
    """A row of a report: GPU-seconds by state and cause. `joules` is the energy, and `tensor` is
    the tensor work in seconds at peak throughput. Both are None if unknown. For a job, `about`
    contains its labels, `receipt` is its receipt as text, and `rate` is in steps per second. If
    `unassigned` is true, hours without a process count as hours without a job."""

    name: str
    seconds: Mapping[Pair, float]
    joules: float | None = None
    about: Mapping[str, str] = {}
    receipt: str = ""
    tensor: float | None = None
    measured: float | None = None  # as in Goodput
    rate: float | None = None
    unassigned: bool = False
    advice: str = ""  # first step of a job that hangs, or against its worst loss, if known
    costs: Mapping[Pair, float] = {}  # at the price of each node; empty without a price
    unpriced: float = 0.0  # GPU-seconds on nodes without a price, which have no cost

    def at(self, price: float) -> "GpuTime":
        """Return a copy of the row with the cost of its hours at `price` per GPU-hour."""
        return self._replace(costs={pair: s / HOUR * price for pair, s in self.seconds.items()})

    def cost(self, states: Iterable[State] = State) -> float | None:
        """Return the cost of the hours in these states, or None if none of them has a price."""
        return float(time_in(self.costs, *states)) if self.costs else None

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> Goodput:
        """Goodput of the row. If `unassigned` is true, hours without a job are excluded."""
        idle = self.seconds.get(NO_JOB, 0.0) if self.unassigned else 0.0
        return Goodput(self.total - idle, self.of(State.BUSY), self.tensor, self.measured)

    @property
    def lost(self) -> float:
        """GPU-seconds in the states whose time counts as lost."""
        return time_in(self.seconds, *LOST_STATES)

    def of(self, state: State) -> float:
        return time_in(self.seconds, state)

    @property
    def worst(self) -> Pair | None:
        lost = [pair for pair, part in self.seconds.items() if pair[0] in LOST_STATES and part > 0]
        return max(lost, key=self.seconds.__getitem__, default=None)


class Report(NamedTuple):
    """A report on the time from `begin` to `end` (Unix timestamps). `covered` is the share of GPU
    time with data, and `before` is the share of GPU time that was lost in an equally long time
    before `begin`. Both are None if unknown."""

    by: str
    begin: float
    end: float
    covered: float | None
    source: str
    price: Price
    rows: tuple[GpuTime, ...]
    before: float | None = None
    nodes: Mapping[str, tuple[float, float]] = {}  # GPU-seconds with data, and all, by node

    def hours(self, seconds: float) -> str:
        """Return `seconds` as hours, rounded to 0.01, or to 1 in reports of at least 1,000."""
        whole = sum(row.total for row in self.rows) >= 1000 * HOUR
        places, least = (0, 1.0) if whole else (2, 0.01)
        value = seconds / HOUR
        return f"< {least:g}" if 0 < value < least else f"{value:,.{places}f}"

    def priced(self, rows: Sequence[GpuTime], pairs: Set[Pair], unit: str = " GPU-hours") -> str:
        """Return the GPU-hours (and cost) of `rows` in these states and causes as a string."""
        seconds = sum(row.seconds.get(pair, 0.0) for row in rows for pair in pairs)
        costs = [row.costs.get(pair, 0.0) for row in rows if row.costs for pair in pairs]
        cost = f" ({money(rows, sum(costs), self.price)})" if costs else ""
        return f"{self.hours(seconds)}{unit}{cost}"


def money(rows: Sequence[GpuTime], cost: float | None, price: Price) -> str:
    """Return `cost` as a string with the currency. Mark it as a lower bound if hours in `rows` have
    no price. Return a dash if the cost is unknown."""
    least = ">= " if any(row.unpriced for row in rows) else ""
    return "-" if cost is None else f"{least}{cost:,.2f} {price.currency}".rstrip()


def cost_line(rows: Sequence[GpuTime], price: Price) -> str:
    """Return a sentence with the total cost of the rows, the price, and the cost of lost time."""
    total, lost = (known_sum(row.cost(states) for row in rows) for states in (State, LOST_STATES))
    if total is None:
        return price.unknown
    each = " to ".join(f"{one:,.2f}" for one in sorted({min(price.each), max(price.each)}))
    each = f"{each} {price.currency}".rstrip() + " per GPU-hour"
    if unpriced := sum(row.unpriced for row in rows):
        each += f"; {amount(unpriced / HOUR)} GPU-hours on nodes without a price"
    cost, of_lost = money(rows, total, price), money(rows, lost, price)
    return f"Cost {cost} ({each}), of which lost {of_lost}."


def _work(report: Report) -> str:
    """Return a sentence with the GPU-hours of jobs, those at work, and those without a job."""
    rows, every = report.rows, together(report.rows)
    all_of = sum(row.total for row in rows)
    text = f"{report.hours(every.given)} of {report.hours(all_of)} GPU-hours were given to jobs"
    if every.at_work is not None:
        text += f"; in {report.hours(every.worked)} of these ({percent(every.at_work)}) "
        text += "the GPUs worked"
        text += "" if every.of_peak is None else f", at {percent(every.of_peak)} of tensor peak"
        if every.of_peak is not None and every.work_measured < 0.99 * every.worked:
            text += f" in the {report.hours(every.work_measured)} in which it was measured"
    neither = {"exposed communication": State.COMMUNICATING, "idle without requests": State.IDLE}
    for name, state in neither.items():
        pairs_of = {pair for row in rows for pair in row.seconds if pair[0] is state} - {NO_JOB}
        if sum(row.seconds.get(pair, 0.0) for row in rows for pair in pairs_of):
            text += f"; {report.priced(rows, pairs_of)} were {name}, which is not lost"
    rest = all_of - every.given
    return f"{text}; {report.priced(rows, {NO_JOB})} had no job." if rest else f"{text}."


def summary(report: Report) -> Iterator[str]:
    """Yield the sentences of a summary: GPU-hours of jobs and at work, lost GPU-hours, advice,
    GPU-hours held without work, and the row with the largest share of lost time."""
    rows, all_of = report.rows, sum(row.total for row in report.rows)
    yield _work(report)
    pairs: Counter[Pair] = Counter()
    for row in rows:
        pairs.update({pair: part for pair, part in row.seconds.items() if pair[0] in LOST_STATES})
    lost, held = pairs.total(), sum(row.of(State.HELD) for row in rows)
    if lost:
        causes = pairs.most_common(4)
        parts = [f"{words(pair)} {report.priced(rows, {pair}, '')}" for pair, _ in causes]
        if smaller := pairs.keys() - {pair for pair, _ in causes}:
            parts.append(f"other causes {report.priced(rows, smaller, '')}")
        share = f"{percent(lost / all_of)} of all"
        if report.before is not None:
            before = percent(report.before)
            worse = "worse" if lost / all_of > report.before else "better"
            than = "as" if share == f"{before} of all" else f"{worse} than {before}"
            share += f" ({than} in the same span before)"
        yield f"Lost: {report.priced(rows, pairs.keys())}, {share}: {', '.join(parts)}."
    else:
        yield "No time was lost."
    if rows and (worst := rows[0].worst):
        hours = report.priced(rows[:1], {worst})
        where = f"{report.by} {rows[0].name}, which lost most: {words(worst)} for {hours}"
        yield f"First to look at: {where}. {rows[0].advice or ADVICE[worst]}"
    most_held = max(rows, key=lambda row: row.of(State.HELD), default=None)
    first_held = rows and rows[0] is most_held and (rows[0].worst or BUSY)[0] is State.HELD
    if most_held and held and not first_held:
        most = f"most by {report.by} {most_held.name}: {report.hours(most_held.of(State.HELD))}"
        hours = report.priced(rows, {p for p in pairs if p[0] is State.HELD})
        yield f"Next to reclaim: {hours} of the lost, held without work; {most}."
    much = [row for row in rows if row.total >= 0.01 * all_of]
    by_share = max(much, key=lambda row: row.lost / row.total, default=None)
    if by_share and by_share.lost and by_share is not rows[0]:
        hours = f"{report.hours(by_share.lost)} of its {report.hours(by_share.total)} GPU-hours"
        yield f"Largest share: {report.by} {by_share.name} lost {hours}."


def known_sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values, or None if all values are unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def together(rows: Iterable[GpuTime]) -> Goodput:
    every = [row.goodput for row in rows]
    tensor = known_sum(one.tensor for one in every)
    given, worked = sum(one.given for one in every), sum(one.worked for one in every)
    return Goodput(given, worked, tensor, sum(one.work_measured for one in every))


def ordered(rows: Iterable[GpuTime]) -> tuple[GpuTime, ...]:
    """Return the rows in descending order of lost time, and then of idle time."""
    kept = (  # external names must be encodable for the terminal
        row._replace(
            name=encodable(row.name), about={k: encodable(v) for k, v in row.about.items()}
        )
        for row in rows
        if row.total > 0
    )
    return tuple(sorted(kept, key=lambda row: (-row.lost, -row.of(State.IDLE), row.name)))


def document(report: Report) -> Document:
    """Return the report as a dict for JSON, with None for unknown values."""
    return {
        "by": report.by,
        "begin": report.begin,
        "end": report.end,
        "covered_share": report.covered,
        "source": report.source,
        "price_of_gpu_hour": report.price.each[0] if len(report.price.each) == 1 else None,
        "currency": report.price.currency or None,
        "lost_share_before": report.before,
        "counted_gpu_hours_by_node": {n: part / HOUR for n, (part, _) in report.nodes.items()},
        "summary": list(summary(report)),
        "rows": [row_document(row) for row in report.rows],
    }


def row_document(row: GpuTime) -> Document:
    """Return a row as a dict for JSON, with None for unknown values."""
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
        "cost": row.cost(),
        "cost_lost": row.cost(LOST_STATES),
        "unpriced_gpu_hours": row.unpriced / HOUR,
    }


COLUMNS = (
    *("name", "cluster", "user", "partition", "account", "gpu_hours", "given_gpu_hours"),
    *("lost_gpu_hours", "held_gpu_hours", "exposed_gpu_hours", "idle_gpu_hours"),
    *("lost_share", "busy_share"),
    *("tensor_throughput", "worst", "kwh", "cost", "cost_lost", "unpriced_gpu_hours"),
)


def as_csv(report: Report) -> str:
    """Return the rows of a report as CSV, with empty cells for unknown values. Put an apostrophe
    before values that a spreadsheet would interpret as a formula."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        cells = row_document(row).items()
        formula = {name: str(value)[:1] in "=+-@\t\r" for name, value in cells if value}
        writer.writerow({name: f"'{v}" if formula.get(name) else v for name, v in cells})
    return text.getvalue()


def words(pair: Pair | None) -> str:
    """Return a description of a state and its cause, or a dash if no time was lost."""
    return SUMMARIES[pair] if pair else "-"
