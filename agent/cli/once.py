"""`dgx-telemetry once`: the machine now, as a table or as JSON: what the live page says."""

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from agent.cli.assembly import Agent
from agent.cli.options import first_snapshot_now, hardware_of, settings_of, settled, view_of
from agent.cli.running_agent import Recent, asked
from agent.cli.table import UNKNOWN, divided, flows, local, of, prose, share, table, terminal_width
from agent.clock import SystemClock
from agent.diagnosis.advice import SUMMARIES, of_each
from agent.errors import printable
from agent.jobs.job import amount
from agent.model import Cause, Reason, State
from agent.ranges import ranges
from agent.report.gpu_time import NO_PRICE
from exporters.live.findings_document import findings_document
from exporters.live.page_state import PageState, whole
from exporters.messages import Document, duration
from exporters.snapshot_json import document

GIB = 1 << 30
HOUR, MINUTE = 3600.0, 60.0

SEEN = 0.05
"""Share of the time from which something is shown."""

LONG = 10
"""Seconds from which it is said how long a state has lasted: before, only the agent is so young."""

PAST = 15
"""Columns for the last 15 minutes of a GPU."""


def run(arguments: argparse.Namespace) -> int:
    """Ask the running agent, or look for a second; print, end."""
    logging.getLogger().addHandler(logging.NullHandler())  # the findings show what is wrong
    settings = settings_of(arguments)
    agent, note = asked(arguments, settings)
    if agent:
        frame, recent = agent.first, agent.recent
        values = agent.snapshot() if arguments.json else {}
    else:  # one look at this machine, without history
        clock, recent = SystemClock(), Recent()
        hardware = settled(hardware_of(arguments, clock), clock)
        local = Agent(settings, hardware, clock)
        last, view = first_snapshot_now(local), view_of(local, hardware)
        page_state = PageState(view)
        page_state.take(last, findings_document(view))
        frame = whole(page_state.machine(), page_state.tick())
        values = document(last, last.at)
    if arguments.json:
        lead = {name: frame[name] for name in ("level", "headline", "action")}
        print(json.dumps(lead | values | {"findings": frame["findings"]}, indent=2))
        print(note, file=sys.stderr, end="\n" * bool(note))
        return 0
    print(printable("\n".join(page(frame, terminal_width(), recent, note))))
    return 0


def page(
    frame: Document, width: int, recent: Recent | None = None, note: str = ""
) -> Iterator[str]:
    """The snapshot in words: the verdict, what is wrong, the machine, its GPUs, what moves."""
    yield from verdict(frame, width)
    yield ""
    yield from prose(machine(frame["machine"]), width, indent="")
    yield from body(frame, recent or Recent(), width)
    if note:
        yield ""
        yield from prose(note, width, indent="")


def verdict(frame: Document, width: int) -> Iterator[str]:
    """The whole machine in one sentence, what to do about it, and each finding."""
    said = frame["headline"].lower()
    yield from prose(f"{frame['headline']}.", width, indent="")
    for place, clause in enumerate(one for one in frame["banner"] if one["action"]):
        lead = "Also" if place else "Do"
        yield from prose(f"{lead}: {clause['action']}", width, indent="")
        known = (f for f in frame["findings"] if f["sentence"].lower() in said)
        stood = next((_since(f, frame) for f in known if f["alert"] == clause["alert"]), "")
        yield from prose("; ".join(filter(None, (stood.strip(), alarm(frame, clause)))), width)
    for alike in grouped(frame["findings"]):
        gpus = [int(one["gpu"]) for one in alike if one["gpu"]]
        named = f"GPUs {ranges(gpus)}: {alike[0]['text']}" if gpus[1:] else alike[0]["sentence"]
        if named.lower() not in said and alike[0]["sentence"].lower() not in said:
            stood = "" if named.endswith(" ago") else _since(alike[0], frame)
            yield from prose(f"{named}{stood}", width, hanging="  ")
            if alike[0]["action"] not in frame["action"]:
                yield from prose(alike[0]["action"], width, indent="    ")
            if alike[0]["alert"] not in (clause["alert"] for clause in frame["banner"]):
                yield from prose(alarm(frame, alike[0]), width, indent="    ")
    if not frame["findings"]:
        yield "All expected hardware is present, and no link is known to be slow."


def alarm(frame: Document, one: Document) -> str:
    """Return how grave it is and whom its alert calls, and its page of the runbook: on the agent
    that is shown, else the file."""
    page = f"; more: {frame.get('runbook', 'RUNBOOK.md')}#{one['alert']}"
    return f"{one['notifies']}{page * bool(one['alert'])}"


def _since(one: Document, frame: Document) -> str:
    """` since 14:03 (5 min)`, as far as it is known."""
    started = frame["machine"].get("started") or frame["timestamp"]
    since = one["since"] or started
    if frame["timestamp"] - started < MINUTE and not one["since"]:
        return ""  # one look, or not much more
    start = "the agent's start, " * (not one["since"])
    at = local(since)
    return f" since {start}{at:%H:%M} ({duration(frame['timestamp'] - since)})"


def grouped(findings: Iterable[Document]) -> Iterable[list[Document]]:
    """Findings that say the same of several GPUs go together; the worst stay first."""
    groups: dict[tuple[str, str], list[Document]] = {}
    for one in findings:
        groups.setdefault((one["kind"], one["text"]), []).append(one)
    return groups.values()


def body(frame: Document, recent: Recent, width: int) -> Iterator[str]:
    """GPUs, jobs, data paths and the host."""
    if frame["gpus"]:
        yield f"  {', '.join(sorted({gpu['model'] or 'model not known' for gpu in frame['gpus']}))}"
        yield ""
        yield from gpus(frame, recent, width)
        yield from times(frame["gpus"], width)
        yield from why(frame["gpus"], frame["action"], width)
    if frame["jobs"]:
        yield ""
        yield from jobs(frame["jobs"], width)
    yield ""
    yield from flows(frame["paths"], width)
    for line in frame.get("speeds", ()):  # an older agent has none
        yield from prose(line, width, hanging="  ")
    rates = "; ".join(f"{path} {words}" for path, words in frame.get("rates", {}).items())
    yield from prose(f"link rates: {rates}" * bool(rates), width, hanging="  ")
    yield ""
    yield from prose(host(frame["host"]), width, indent="")
    yield from prose(unknown(frame), width, indent="", hanging="  ")


NO_GPUS = {
    Reason.STALLED.value: "its NVIDIA driver does not respond",
    Reason.NO_DRIVER.value: "no NVIDIA driver",
}


def machine(identity: Document) -> str:
    name = identity["title"] or identity["product"] or "This machine"
    found, expected = identity["gpus"], identity["gpus_expected"]
    if found is None:
        return f"{name}, {NO_GPUS.get(identity['no_gpus'], 'its GPUs could not be asked')}"
    answering = f"{found} of {expected} GPUs" if expected else f"{found} GPUs"
    simulated = "Simulated, not this host's GPUs: " * bool(identity.get("simulated"))
    driver = f"driver {identity['driver_version'] or 'not known'}"
    return f"{simulated}{name}, {driver}, {answering}"


HEADER = ("gpu", "state", "active", "SM", "mem GiB", "power W", "temp C")


def gpus(frame: Document, recent: Recent, width: int, only: str = "") -> list[str]:
    """A row for each GPU, or for one; below it one for each of its MIG instances."""
    past = bool(recent.rings)
    rows = []
    for gpu in (gpu for gpu in frame["gpus"] if only in ("", gpu["gpu"])):
        of_gpu = {meter["name"]: meter for meter in gpu["meters"]}
        scales = (("memory", GIB), ("power", 1.0), ("temperature", 1.0))
        row = [
            *(gpu["gpu"], _state(gpu)),
            *(share(of_gpu[name]["value"]) for name in ("activity", "sm")),
            *(of(of_gpu[name]["value"], of_gpu[name]["limit"], scale) for name, scale in scales),
        ]
        rows.append(row + [recent.line(gpu["uuid"], PAST)] * past)
        for one in gpu["instances"]:
            memory = of(one["memory"], one["memory_limit"], GIB)
            named = f"{gpu['gpu']}:{one['number']}", f"MIG {one['profile']}"
            shares = share(one["activity"]), share(one["sm"])
            rows.append([*named, *shares, memory, "", ""] + [""] * past)
    return table([*HEADER, *["active, 15 min"] * past], rows, width=width)


def _state(gpu: Document) -> str:
    if gpu["lost"]:
        return "lost"
    if gpu["state"] is None:
        return gpu["summary"] or UNKNOWN
    return _pair(gpu["state"], gpu["cause"])


def times(found: Sequence[Document], width: int) -> list[str]:
    """Return the division of GPU time over the last seconds, unless it was one state."""
    sums: Counter[str] = Counter()
    for gpu in found:
        sums.update({_pair(*pair.split("/")): part for pair, part in gpu["shares"].items()})
    one = max(sums.values(), default=1.0) > (1 - SEEN) * sums.total()
    words = f"time of {'all GPUs' if found[1:] else 'it'}, last 10 s: {divided(sums)}"
    return [] if one else prose(words, width, hanging="  ")


def _pair(state: str, cause: str) -> str:
    return SUMMARIES[State(state), Cause(cause)]


def why(found: Iterable[Document], said: str, width: int) -> Iterator[str]:
    """Each verdict that costs something, once: its GPUs, why, what to do where that is not `said`
    above."""

    def verdict(gpu: Document) -> tuple[str, str, str]:  # a lost GPU has neither state nor cause
        return gpu["state"] or "", gpu["cause"] or "", gpu["advice"] * bool(gpu["beside"])

    for _, group in groupby(sorted((g for g in found if g["advice"]), key=verdict), key=verdict):
        alike = list(group)
        first = alike[0]
        if first["beside"] and first["advice"] in said:
            continue  # the headline and the shares say all of it
        yield ""
        names = f"GPU{'s' * (len(alike) > 1)} {ranges(int(gpu['gpu']) for gpu in alike)}"
        seconds = min(gpu["seconds"] for gpu in alike)
        stood = f" for {duration(seconds)}" if seconds >= LONG else ""
        reason = stood + first["sentence"].removeprefix(first["summary"])
        if first["beside"]:
            reason = f": {first['beside']}"
        elif len({gpu["sentence"] for gpu in alike}) > 1:
            reason = f"{stood}, for example GPU {first['gpu']}{reason.removeprefix(stood)}"
        advice = f" {first['advice']}" * (first["advice"] not in said)
        summary = of_each(first["summary"]) if alike[1:] else first["summary"]
        yield from prose(f"{names} {summary}{reason}.{advice}", width)
        for gpu in (gpu for gpu in alike if gpu["note"]):
            yield from prose(f"GPU {gpu['gpu']}: {gpu['note']}", width)


def jobs(found: Sequence[Document], width: int) -> Iterator[str]:
    """A row for each running job."""
    header = ("job", "GPUs", "seen for", "lost of GPU-h", "progress")
    rows = []
    for job in found:
        lost = " of ".join(amount(job[part] / HOUR) for part in ("lost", "gpu_seconds"))
        rows.append([job["title"], job["gpus"], duration(job["watched"]), lost, job["sentence"]])
    yield from table(header, rows, width=width)
    for job in found:
        of = job["user"] and f"of {job['user']}"
        parts = [of, job["money"], job["saving"] if job["watched"] >= MINUTE else ""]
        said = "; ".join(filter(None, parts))
        yield from prose(f"{job['title']}: {said}" if said else "", width)
    if all(job["cost"] is None for job in found):
        yield from prose(NO_PRICE, width)


def unknown(frame: Document) -> str:
    """Return how many metrics are absent, and for which reasons, the most frequent first."""
    metrics = {one["metric"] for one in frame["absent"]}
    often = Counter(one["reason"] for one in frame["absent"]).most_common()
    reasons = ", ".join(frame["reasons"][reason] for reason, _ in often)
    page = frame.get("runbook", "").removesuffix("runbook.html")
    where = f"The page {page}" if page else "`dgx-telemetry check`"
    some = f"Not known: {len(metrics)} metrics ({reasons}). {where} has all."
    return some * bool(metrics)


def host(found: Document) -> str:
    """Return the load of the host's CPUs, in one sentence."""
    stalls = ", ".join(
        f"{name} {share(min(part, 1.0))}"
        for name, part in found["stalled"].items()
        if part is not None
    )
    return f"CPUs busy {share(found['cpu'])}" + f"; some task waited: {stalls}" * bool(stalls)
