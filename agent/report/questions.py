"""Data sources of reports: Prometheus or VictoriaMetrics, and the jobs that an agent remembers."""

import base64
import http.client
import ipaddress
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from agent.diagnosis.job_watch import PRICE
from agent.errors import BadInput
from agent.faults.promql import seconds as seconds_of
from agent.faults.records import JOULES_RECORD, SECONDS_RECORD, TENSOR_RECORD
from agent.faults.silence import UP
from agent.model import Pair
from agent.report.gpu_time import (
    HOUR,
    JOB_LABELS,
    LABELS,
    Document,
    GpuTime,
    known_sum,
    ordered,
    pair_of,
)

ANSWER_SECONDS = 60.0
MOST_BYTES, READ_AT_ONCE = 64 << 20, 1 << 16  # of an answer, and of a read of it
NONE = "(none)"
JOB_NAME = re.compile(r"[A-Za-z0-9_.:@/+-]{1,128}")


class NoAnswer(BadInput):
    """Error of a server that does not answer, or answers with something else."""


def from_prometheus(url: str, since: str, by: str, job: str) -> tuple[GpuTime, ...]:
    """GPU-seconds over this time; `job` only of that job. Raises NoAnswer."""
    if job and not JOB_NAME.fullmatch(job):
        raise BadInput(f"{job!r:.60} is not a job: letters, digits and _.:@/+- are expected")
    chosen = f'{{job_id="{job}"}}' if job else ('{job_id!=""}' if by != "node" else "")
    names = JOB_LABELS if by == "job" else (LABELS[by],)
    inside = ", ".join((*names, "state", "cause"))
    seconds = f"sum by ({inside}) (sum_over_time({SECONDS_RECORD}{chosen}[{since}]))"
    energy, tensor = (
        {
            _key(one, names): value
            for one, value in _query(
                url, f"sum by ({', '.join(names)}) (sum_over_time({record}{chosen}[{since}]))"
            )
        }
        for record in (JOULES_RECORD, TENSOR_RECORD)
    )
    by_name: dict[tuple[str, ...], dict[Pair, float]] = {}
    for labels, value in _query(url, seconds):
        pair = pair_of(labels.get("state", ""), labels.get("cause", ""))
        if pair is not None:
            parts = by_name.setdefault(_key(labels, names), {})
            parts[pair] = parts.get(pair, 0.0) + value
    return ordered(
        GpuTime(
            key[0] or NONE,
            parts,
            energy.get(key),
            dict(zip(names[1:], key[1:], strict=True)),
            tensor=tensor.get(key),
            unassigned=by == "node",
        )
        for key, parts in by_name.items()
    )


def failed_scrapes(url: str, since: str) -> float:
    """Share of the scrapes of agents that failed, 0-1: no row counts the time of failed scrapes."""
    good, all_of = (f"sum({kind}_over_time({UP}[{since}]))" for kind in ("sum", "count"))
    answer = _query(url, f"1 - {good} / {all_of}")
    share = answer[0][1] if answer else 0.0
    return share if 0.0 < share <= 1.0 else 0.0


def price_of(prometheus: str, agent: str, since: str) -> float | None:
    """The price of a GPU-hour that Prometheus has of all nodes, or an agent of its own; 0 if no
    price is configured, None if nodes differ. Raises NoAnswer."""
    try:
        if not prometheus:
            host = fetched(f"{agent.rstrip('/')}/api/v1/snapshot").get("host", {})
            return float(host.get(PRICE.name, 0.0))
        asked = f"count_values('price', last_over_time({PRICE.name}[{since}]))"
        prices = {float(labels["price"]) for labels, _ in _query(prometheus, asked)} or {0.0}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        where = place(prometheus or agent)
        raise NoAnswer(f"{where} answers with no price: {error!r}") from error
    return prices.pop() if len(prices) == 1 else None


def from_hours(url: str, since: str, by: str, job: str) -> tuple[float, tuple[GpuTime, ...]]:
    """The start of the record (wall time) and the hourly sums of an agent, of 7 days at most; no
    rows by job, user or account if the agent may not name jobs. Raises NoAnswer."""
    now = time.time()
    begun = now - seconds_of(since)
    answer = fetched(f"{url.rstrip('/')}/api/v1/hours")
    node = urllib.parse.urlsplit(url).hostname or url
    names = LABELS | {"node": ""}
    found: list[GpuTime] = []
    first = now
    try:
        for hour in answer.get("hours", ()):
            first = min(first, max(hour["hour"] * HOUR, hour.get("since", 0.0)))
            if not begun // HOUR * HOUR <= hour["hour"] * HOUR <= now:
                continue
            for row in hour["rows"]:
                if by != "node" and not (row["job_id"] and job in ("", row["job_id"])):
                    continue
                name = row[names[by]] or NONE if names[by] else node
                about = {k: row[k] for k in JOB_LABELS[1:]} if by == "job" else {}
                parts, tensor = _parts(row["seconds"]), row.get("tensor")
                sums = GpuTime(name, parts, row["joules"], about, tensor=tensor)
                found.append(sums._replace(unassigned=by == "node"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoAnswer(f"{place(url)} does not answer as an agent does: {error!r}") from error
    return first, _merged(found)


def from_agent(url: str, by: str, job: str) -> tuple[GpuTime, ...]:
    """The jobs that an agent watches, and the last 50 that ended. Raises NoAnswer."""
    answer = fetched(f"{url.rstrip('/')}/api/v1/jobs")
    try:
        receipts: list[Document] = [*answer["running"], *answer["ended"]]
        node = urllib.parse.urlsplit(url).hostname or url
        rows = [_row(one, by, node) for one in receipts if not job or job in _ids(one)]
    except (KeyError, TypeError, ValueError) as error:
        raise NoAnswer(f"{place(url)} does not answer as an agent does: {error!r}") from error
    return _merged(rows)


def _merged(rows: Iterable[GpuTime]) -> tuple[GpuTime, ...]:
    """Merge rows of the same name, but rows of jobs only if the user is the same too: any program
    may have the name of another user's."""
    merged: dict[tuple[str, str], GpuTime] = {}
    for row in rows:
        key = row.name, row.about.get("user", "")
        merged[key] = _sum(merged[key], row) if key in merged else row
    return ordered(merged.values())


def _ids(receipt: Document) -> set[str | None]:
    """All names that people may use for a job: its names on any system, and its processes."""
    named = {receipt["id"], receipt.get("name"), receipt.get("job_id"), receipt.get("title")}
    first = {re.split(r"[-: ]", str(name))[-1] for name in named}  # its first process
    return named | first | {*map(str, receipt.get("pids", ()))}


def _row(receipt: Document, by: str, node: str) -> GpuTime:
    name, parts = node if by == "node" else receipt.get(by) or NONE, _parts(receipt["gpu_seconds"])
    row = GpuTime(name, parts, receipt["joules"], tensor=receipt.get("tensor_peak_seconds"))
    if by != "job":
        return row
    return row._replace(
        name=receipt.get("job_id") or receipt.get("title") or receipt["id"],
        about={name: receipt.get(name) or "" for name in JOB_LABELS[1:]},
        receipt=receipt["receipt"],
        rate=receipt.get("mean_steps_per_second"),
        advice=(receipt.get("hang") or {}).get("action", ""),
        paid=receipt.get("cost"),
    )


def _parts(seconds_by_pair: Mapping[str, float]) -> dict[Pair, float]:
    """Seconds by pair, for the pairs that are known here."""
    pairs = ((pair_of(*name.split("/")), seconds) for name, seconds in seconds_by_pair.items())
    return {pair: float(seconds) for pair, seconds in pairs if pair is not None}


def _sum(one: GpuTime, other: GpuTime) -> GpuTime:
    # A job may be there a second before Slurm's data on it.
    about = {name: one.about.get(name) or value for name, value in other.about.items()}
    pairs = {*one.seconds, *other.seconds}
    return one._replace(
        seconds={p: one.seconds.get(p, 0.0) + other.seconds.get(p, 0.0) for p in pairs},
        joules=known_sum((one.joules, other.joules)),
        about=about,
        tensor=known_sum((one.tensor, other.tensor)),
        paid=known_sum((one.paid, other.paid)),
    )


def _key(labels: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in names)


def _query(url: str, promql: str) -> list[tuple[Mapping[str, str], float]]:
    asked = urllib.parse.urlencode({"query": promql, "timeout": f"{ANSWER_SECONDS:g}s"})
    answer = fetched(f"{url.rstrip('/')}/api/v1/query?{asked}")
    try:
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise NoAnswer(f"{place(url)} does not answer as Prometheus does: {error!r}") from error


def place(address: str) -> str:
    """An address without user name and password."""
    parts = urllib.parse.urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fetched(address: str, timeout: float = ANSWER_SECONDS + 5) -> Any:
    """The JSON at an address, within `timeout` (s). Raises NoAnswer, and BadInput if it is no
    address."""
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
    """The answer of an address, which may have USER:PASSWORD@, within `timeout` (s); to be closed.
    Raises NoAnswer, and BadInput if that is no address."""
    try:
        parts = urllib.parse.urlsplit(address)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets, or a port beyond 65535
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
        # A proxy of the environment is on the way to other hosts alone.
        here = [urllib.request.ProxyHandler({})] if _is_loopback(parts.hostname or "") else []
        opener = urllib.request.build_opener(*here)
        return cast("http.client.HTTPResponse", opener.open(request, timeout=timeout))
    except urllib.error.HTTPError as error:
        said = ""
        with suppress(OSError, ValueError, http.client.HTTPException):
            said = error.read(300).decode(errors="replace").replace("\n", " ")
        raise NoAnswer(f"{where} answers {error.code}: {said}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)  # of a URLError: the system's message
        why = getattr(reason, "strerror", None) or reason
        raise NoAnswer(f"{where} does not answer: {why}") from error
