"""Queries Prometheus, VictoriaMetrics, or an agent (hourly sums, job receipts) for reports."""

import base64
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from agent.diagnosis.job_watch import CURRENCY, PRICE
from agent.errors import BadInput
from agent.faults import records
from agent.faults.promql import NODE
from agent.faults.promql import seconds as seconds_of
from agent.model import LOST_STATES, Cause, Pair, State, time_in
from agent.ranges import is_loopback
from agent.report.gpu_time import HOUR, Document, GpuTime, Price, Report, known_sum, ordered
from agent.sources.system import GPUS_EXPECTED

JOB_LABELS = ("job_id", "user", "partition", "account")
LABELS = {
    "cluster": ("cluster",),
    "node": ("instance", "cluster"),
    "job": (*JOB_LABELS, "cluster"),
    "user": ("user",),
    "account": ("account",),
    "namespace": ("namespace",),
}
"""Labels of the rows for each grouping of a report. The value of the first label is the name of the
row. Names of nodes and jobs are unique only within a cluster."""

IN_NAMESPACE = "([^/]+)/.+"
"""Pattern for the job ID of a Kubernetes pod, which has the form NAMESPACE/POD."""

HARDWARE = ("cluster", "node")
"""Groupings whose rows include hours without a job."""

MANY_CURRENCIES = "No cost: nodes have prices in different currencies (`currency` below [cost])."

ANSWER_SECONDS, QUERY_SECONDS = 10.0, 60.0  # timeouts of a response, and of a long query
MOST_BYTES, READ_AT_ONCE = 64 << 20, 1 << 16  # maximum bytes per response and per read
NONE = "(none)"
OF_TIME = records.SECONDS_RECORD, records.SHARED_SECONDS_RECORD
OF_TENSOR = records.TENSOR_RECORD, records.SHARED_TENSOR_RECORD
Sums = dict[tuple[str, ...], float]
Two = tuple[object, object]


class NoAnswer(BadInput):
    """Raised if a server does not respond, or if its response is invalid."""


def prometheus_report(url: str, since: str, by: str, job: str, known: Price | None) -> Report:
    """Return a report on the last `since`, such as 7d, with data from Prometheus. A `known` price
    has precedence over the prices of the nodes. Raise NoAnswer if the server does not respond."""
    fetched(f"{url.rstrip('/')}/api/v1/query?query=1")  # for the shorter timeout
    now, price = time.time(), known or price_of(url, since)
    each = prices_of(since) if price.each and not known else ""
    rows = from_prometheus(url, since, by, job, each)
    rows = tuple(row.at(known.each[0]) for row in rows) if known else rows
    report = Report(by, now - seconds_of(since), now, None, "Prometheus", price, rows)
    if job or not rows:
        return report
    nodes, before = counted(url, since), lost_before(url, since, by)
    part, whole = (sum(one[n] for one in nodes.values()) for n in (0, 1))
    return report._replace(covered=part / whole if whole else None, nodes=nodes, before=before)


def agent_report(url: str, since: str, by: str, job: str, known: Price | None) -> Report:
    """Return a report on the last `since`, such as 7d, with data from an agent. A `known` price has
    precedence over the price of the agent. Raise NoAnswer if the agent does not respond."""
    now, price = now_and_price(url)
    hours = None if job else from_hours(url, now, since, by, "")
    if hours and hours.begin > now - seconds_of(since):
        hours = hours._replace(source=f"{hours.source}, which begin then")
    # A receipt has more details than the hourly sums, which exclude jobs without a name.
    report = hours or from_agent(url, now, by, job)
    report = report if report.rows else from_hours(url, now, "7d", by, job) or report
    price = known or price
    rows = tuple(row.at(price.each[0]) for row in report.rows) if price.each else report.rows
    return report._replace(price=price, rows=rows)


def from_prometheus(url: str, since: str, by: str, job: str, each: str = "") -> tuple[GpuTime, ...]:
    """Return the GPU-seconds in the last `since`, such as 7d, grouped by `by`. If `job` is not
    empty, return only that job. Include costs if `each` is a query for the price of each node.
    Raise BadInput if the job name is invalid, and NoAnswer if Prometheus does not respond."""
    if job and not re.fullmatch(r"[A-Za-z0-9_.:@/+-]{1,128}", job):
        raise BadInput(f"{job!r:.60} is not a job: letters, digits and _.:@/+- are expected")
    named = '{job_id!=""}' if by not in HARDWARE else ""
    chosen = f'{{job_id="{job}"}}' if job else named
    names, summed = LABELS[by], partial(_sums, url, since, by, chosen)
    energy = summed((records.JOULES_RECORD, records.SHARED_JOULES_RECORD))
    tensor = summed(OF_TENSOR)
    unmeasured = summed(OF_TIME, "state", lacking=OF_TENSOR) if tensor else {}
    by_name: dict[tuple[str, ...], dict[Pair, float]] = {}
    for (*name, state, cause), value in summed(OF_TIME, "state", "cause").items():
        if (pair := pair_of(state, cause)) is not None:
            by_name.setdefault(tuple(name), {})[pair] = value
    on, pairs = f"on (cluster, {NODE})", ("state", "cause")
    costs = summed(OF_TIME, *pairs, prices=f" * {on} group_left () {each}") if each else {}
    unpriced = summed(OF_TIME, prices=f" unless {on} {each}") if each else {}
    return ordered(
        GpuTime(
            key[0] or NONE,
            parts,
            energy.get(key),
            dict(zip(names[1:], key[1:], strict=True)),
            tensor=tensor.get(key),
            measured=max(0.0, time_in(parts, State.BUSY) - unmeasured.get((*key, State.BUSY), 0.0)),
            unassigned=by in HARDWARE,
            costs={p: costs[one] / HOUR for p in parts if (one := (*key, *p)) in costs},
            unpriced=unpriced.get(key, 0.0),
        )
        for key, parts in by_name.items()
    )


def _sums(
    url: str,
    since: str,
    by: str,
    chosen: str,
    of: Two,
    *further: str,
    lacking: Two = ("", ""),
    prices: str = "",
) -> Sums:
    """Return the sums of the recording rules in `of` by row and the labels in `further`. Omit nodes
    and times for which the rules in `lacking` have values. `prices` is appended to the query. For
    clusters and nodes, use only the first rule, because it includes shared GPUs."""
    grouping, found = (*LABELS[by], *further), Sums()
    for record, other in [*zip(of, lacking, strict=True)][: 1 if by in HARDWARE else 2]:
        span = f"{record}{chosen}[{since}]"
        if other:  # without the nodes and hours that have this record
            lacks = f"({record}{chosen} unless on (instance, job) last_over_time({other}[1h]))"
            span = f"{lacks}[{since}:{records.REPORT_EVERY}]"
        sums = f"sum_over_time({span}){prices}"
        if by == "namespace":
            sums = f'label_replace({sums}, "namespace", "$1", "job_id", "{IN_NAMESPACE}")'
        for labels, value in _query(url, f"sum by ({', '.join(grouping)}) ({sums})"):
            key = tuple(labels.get(name, "") for name in grouping)
            found[key] = found.get(key, 0.0) + value
    return found


def prices_of(since: str) -> str:
    """Return PromQL for the latest price of each node in the last `since`, such as 7d."""
    return f"max by (cluster, {NODE}) (last_over_time({PRICE.name}[{since}]))"


def counted(url: str, since: str) -> dict[str, tuple[float, float]]:
    """Return the GPU-seconds with data and all GPU-seconds of each node in the last `since`. If the
    number of GPUs is unknown, use the largest number with data in any five minutes."""
    every, seconds, by = records.REPORT_EVERY, records.SECONDS_RECORD, "sum by (cluster, instance)"
    fullest = f"max_over_time({by} ({seconds})[{since}:{every}])"
    gpus = f"max by (cluster, instance) (max_over_time({GPUS_EXPECTED.name}[{since}]))"
    known = f"clamp_min(round({fullest} / {seconds_of(every):g}), 1)"
    whole, parts = (
        {" ".join(filter(None, map(one.get, LABELS["node"]))): value for one, value in found}
        for found in (
            _query(url, f"({gpus} or {known}) * {seconds_of(since):g}"),
            _query(url, f"{by} (sum_over_time({seconds}[{since}]))"),
        )
    )
    return {node: (min(parts.get(node, 0.0), all_of), all_of) for node, all_of in whole.items()}


def lost_before(url: str, since: str, by: str) -> float | None:
    """Return the share of GPU time that was lost in the time before the report, for as long as the
    report covers. Return None if no time was lost or there is no data."""
    jobs = "" if by == "node" else ', job_id!=""'
    seconds = records.SECONDS_RECORD
    lost, whole = (
        f'sum(sum_over_time({seconds}{{state=~"{wanted}"{jobs}}}[{since}] offset {since}))'
        for wanted in ("|".join(LOST_STATES), ".+")
    )
    answer = _query(url, f"{lost} / {whole}")
    return answer[0][1] if answer and 0.0 < answer[0][1] <= 1.0 else None


def price_of(prometheus: str, since: str) -> Price:
    """Return the prices per GPU-hour from Prometheus, or no price if the nodes have different
    currencies. Raise NoAnswer if Prometheus does not respond."""
    found = _query(prometheus, prices_of(since))
    named = _query(prometheus, f"group by (currency) (last_over_time({CURRENCY.name}[{since}]))")
    currencies = {labels.get("currency", "") for labels, _ in named}
    if len(currencies) > 1:
        return Price(unknown=MANY_CURRENCIES)
    return Price(tuple(sorted({value for _, value in found})), "".join(currencies))


def now_and_price(agent: str) -> tuple[float, Price]:
    """Return an agent's wall-clock time (s) and price per GPU-hour. Raise NoAnswer without them."""
    snapshot = fetched(f"{agent.rstrip('/')}/api/v1/snapshot")
    with parsing(agent, "an agent"):
        host = snapshot["host"]
        prices = (float(host[PRICE.name]),) if PRICE.name in host else ()
        currency = str(host.get(CURRENCY.name, [{"currency": ""}])[0]["currency"])
        return float(snapshot["timestamp"]), Price(prices, currency)


def from_hours(url: str, now: float, since: str, by: str, job: str) -> Report | None:
    """Return a report from an agent's hourly sums of up to 7 days, or None if there are no rows. If
    the agent must not disclose job names, it returns only rows by node. Raise NoAnswer if the agent
    does not respond."""
    begin = (now - seconds_of(since)) // HOUR * HOUR
    answer = fetched(f"{url.rstrip('/')}/api/v1/hours")
    node = urllib.parse.urlsplit(url).hostname or url
    found: list[GpuTime] = []
    counted, gpus, first = 0.0, set[str](), now
    with parsing(url, "an agent"):
        for hour in answer["hours"]:
            if not begin <= hour["hour"] * HOUR <= now:
                continue
            first = min(first, max(hour["hour"] * HOUR, hour.get("since", 0.0)))
            gpus |= hour.get("gpus", {}).keys()  # version 0.2.0 has no GPUs in its response
            for row in hour["rows"]:
                counted += sum(row["seconds"].values())
                if by != "node" and not (row["job_id"] and job in ("", row["job_id"])):
                    continue
                name = node if by == "node" else _name(row, by)
                about = {k: row[k] for k in JOB_LABELS[1:]} if by == "job" else {}
                parts, tensor = _parts(row["seconds"]), row.get("tensor")
                sums = GpuTime(name, parts, row["joules"], about, tensor=tensor)
                found.append(sums._replace(unassigned=by == "node"))
    if not (rows := _merged(found)):
        return None
    asked = len(gpus) * (now - first)
    share = min(1.0, counted / asked) if asked else None
    return Report(by, first, now, share, "one agent's hourly sums", Price(), rows)


def _name(row: Mapping[str, str], by: str) -> str:
    if by == "namespace":
        named = re.fullmatch(IN_NAMESPACE, row["job_id"])
        return named[1] if named else NONE
    return row[LABELS[by][0]] or NONE


def from_agent(url: str, now: float, by: str, job: str) -> Report:
    """Return a report on an agent's running and last 50 ended jobs. Raise NoAnswer without one."""
    answer = fetched(f"{url.rstrip('/')}/api/v1/jobs")
    with parsing(url, "an agent"):
        receipts: list[Document] = [*answer["running"], *answer["ended"]]
        node = urllib.parse.urlsplit(url).hostname or url
        chosen = [one for one in receipts if not job or job in _ids(one)]
        rows = _merged(_row(one, by, node) for one in chosen)
        begun = (datetime.fromisoformat(one["began"]).timestamp() for one in chosen)
        begin = min(begun, default=now)
    return Report(by, begin, now, None, "the jobs that one agent remembers", Price(), rows)


def _merged(rows: Iterable[GpuTime]) -> tuple[GpuTime, ...]:
    """Merge rows of the same name. Jobs must have the same user: users may share a job name."""
    merged: dict[tuple[str, str], GpuTime] = {}
    for row in rows:
        key = row.name, row.about.get("user", "")
        merged[key] = _sum(merged[key], row) if key in merged else row
    return ordered(merged.values())


def _ids(receipt: Document) -> set[str | None]:
    """Return all names of a job, including the job ID of its scheduler and its PIDs."""
    named = {receipt["id"], receipt.get("name"), receipt.get("job_id"), receipt.get("title")}
    first = {re.split(r"[-: ]", str(name))[-1] for name in named}  # the first process ID
    return named | first | {*map(str, receipt.get("pids", ()))}


def _row(receipt: Document, by: str, node: str) -> GpuTime:
    labels = {name: receipt.get(name) or "" for name in JOB_LABELS}
    name, parts = node if by == "node" else _name(labels, by), _parts(receipt["gpu_seconds"])
    row = GpuTime(name, parts, receipt["joules"], tensor=receipt.get("tensor_peak_seconds"))
    if by != "job":
        return row
    steps = {pair_of(*one["cause"].split("/")): one["advice"] for one in receipt.get("savings", ())}
    return row._replace(
        name=receipt.get("job_id") or receipt.get("title") or receipt["id"],
        about={name: labels[name] for name in JOB_LABELS[1:]},
        receipt=receipt["receipt"],
        rate=receipt.get("mean_steps_per_second"),
        advice=(receipt.get("hang") or {}).get("action", "") or steps.get(row.worst, ""),
    )


def pair_of(state: str, cause: str) -> Pair | None:
    """Return the state and the cause with these names, or None if this version lacks one."""
    try:
        return State(state), Cause(cause)
    except ValueError:
        return None


def _parts(seconds_by_pair: Mapping[str, float]) -> dict[Pair, float]:
    """Return the seconds by state and cause. Omit unknown states and causes."""
    pairs = ((pair_of(*name.split("/")), seconds) for name, seconds in seconds_by_pair.items())
    return {pair: float(seconds) for pair, seconds in pairs if pair is not None}


def _sum(one: GpuTime, other: GpuTime) -> GpuTime:
    # A job may appear a second before its Slurm labels are known.
    about = {name: one.about.get(name) or value for name, value in other.about.items()}
    pairs = {*one.seconds, *other.seconds}
    return one._replace(
        seconds={p: one.seconds.get(p, 0.0) + other.seconds.get(p, 0.0) for p in pairs},
        joules=known_sum((one.joules, other.joules)),
        about=about,
        tensor=known_sum((one.tensor, other.tensor)),
        measured=one.goodput.work_measured + other.goodput.work_measured,
    )


def _query(url: str, promql: str) -> list[tuple[Mapping[str, str], float]]:
    asked = urllib.parse.urlencode({"query": promql, "timeout": f"{QUERY_SECONDS:g}s"})
    answer = fetched(f"{url.rstrip('/')}/api/v1/query?{asked}", QUERY_SECONDS + 5)
    with parsing(url, "Prometheus"):
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]


@contextmanager
def parsing(url: str, kind: str) -> Iterator[None]:
    """Raise NoAnswer for a response that lacks a field or has one of another type."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        lacks = f": it has no {error}" if isinstance(error, KeyError) else ""
        raise NoAnswer(f"{place(url)} does not respond as {kind} does{lacks}") from error


def place(address: str) -> str:
    """Return the scheme, host, and port of a URL as a string."""
    parts = urllib.parse.urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def fetched(address: str, timeout: float = ANSWER_SECONDS) -> Any:
    """Return the decoded JSON at a URL, fetched within `timeout` seconds. Raise BadInput if the URL
    is invalid, and NoAnswer if the request fails."""
    until, content = time.monotonic() + timeout, bytearray()
    with opened(address, timeout) as answer:
        try:
            while part := answer.read1(READ_AT_ONCE):
                content += part
                if len(content) > MOST_BYTES or time.monotonic() > until:
                    limit = f"{MOST_BYTES >> 20} MiB within {timeout:g} s"
                    raise NoAnswer(f"{place(address)} answers without an end, expected {limit}")
            return json.loads(content)
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            if isinstance(error, NoAnswer):
                raise
            raise NoAnswer(f"{place(address)} does not answer: {error}") from error


def opened(address: str, timeout: float) -> http.client.HTTPResponse:
    """Return the HTTP response for a URL, which may contain USER:PASSWORD@. `timeout` is in
    seconds. The caller must close the response. Raise BadInput if the URL is invalid, and NoAnswer
    if the request fails."""
    try:
        parts = urllib.parse.urlsplit(address)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # unbalanced brackets, or a port above 65535
        right = False
    if not right or not (address.isascii() and address.isprintable() and " " not in address):
        given = address.partition("/api/v1/")[0].rpartition("@")[2]
        raise BadInput(f"{given!r} is not an address, expected http://HOST:PORT")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    request = urllib.request.Request(bare.geturl())  # noqa: S310
    if parts.username is not None:
        name, word = (urllib.parse.unquote(p or "") for p in (parts.username, parts.password))
        token = base64.b64encode(f"{name}:{word}".encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    where = place(address)
    try:
        # For loopback addresses, ignore proxies from the environment.
        host = parts.hostname or ""
        local = host == "localhost" or is_loopback(host)
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
        return cast("http.client.HTTPResponse", opener.open(request, timeout=timeout))
    except urllib.error.HTTPError as error:
        said = ""
        with error, suppress(OSError, ValueError, http.client.HTTPException):
            said = error.read(300).decode(errors="replace").replace("\n", " ").strip()
        if error.code == HTTPStatus.NOT_FOUND:
            raise NoAnswer(f"{where} is another program: it has no {parts.path}") from error
        raise NoAnswer(f"{where} answers {error.code}: {said}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)  # URLError contains the system error
        why = getattr(reason, "strerror", None) or reason
        raise NoAnswer(f"{where} does not answer: {why}") from error
