"""The `dgx-telemetry once` command. It prints the current status as text or JSON."""

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from agent.cli.options import first_look, settings_of
from agent.cli.running_agent import ONE_LOOK, asked
from agent.cli.table import local, of, prose, share, table, terminal_width
from agent.errors import printable
from agent.jobs.job import amount
from agent.report.gpu_time import NO_PRICE
from agent.status.machine import summary
from agent.status.model import FindingStatus, HeadlineClause, PathRow, Status
from agent.status.words import duration
from exporters.documents import document

GIB = 1 << 30
HOUR, MINUTE = 3600.0, 60.0


class StatusView(NamedTuple):
    """A status to print, and the address of the runbook to which it links."""

    status: Status
    runbook: str = "RUNBOOK.md"


def run(arguments: argparse.Namespace) -> int:
    """Print the status of the running agent. If there is no agent, read this machine."""
    logging.getLogger().addHandler(logging.NullHandler())  # faults are printed as findings
    settings = settings_of(arguments)
    agent, note = asked(arguments, settings)
    if agent:
        look = StatusView(agent.first, f"{agent.place}/runbook.html")
        values = agent.snapshot() if arguments.json else {}
    else:  # without an agent, read this machine
        _, last, status = first_look(arguments, settings)
        look = StatusView(status)
        values = document(last, last.at)
    if arguments.json:
        found = {"status": msgspec.to_builtins(look.status), **values}
        print(json.dumps(found, indent=2))
        if note:
            print(note, file=sys.stderr)
        return 0
    said = note if agent or arguments.replay else f"{note} {ONE_LOOK}".lstrip()
    print(printable("\n".join(page(look, terminal_width(), said))))
    return 0


def page(look: StatusView, width: int, note: str = "") -> Iterator[str]:
    """Yield the lines of the output: time, machine, faults, GPUs, jobs, data paths, and host."""
    yield from prose(heading(look.status), width, indent="", hanging="  ")
    yield ""
    yield from verdict(look, width)
    yield from body(look.status, width)
    if note:
        yield ""
        yield from prose(note, width, indent="")


def heading(status: Status) -> str:
    """Return the time, the host name, and a summary of the machine."""
    at, machine = local(status.at.timestamp()), status.machine
    return f"{at:%Y-%m-%d %H:%M:%S %Z}  {machine.host}  {machine.text}"


def verdict(look: StatusView, width: int) -> Iterator[str]:
    """Yield the lines for the headline, and then for the findings that are not in the headline. A
    hidden finding follows the finding that hides it."""
    status = look.status
    spoken = {name for clause in status.headline for name in clause.findings}
    for clause in status.headline:
        yield from prose(f"{clause.text}.", width, indent="")
        yield from _about(look, clause, width, "")
        yield from _hidden(status, clause.findings, width, "  ")
    others = [one for one in status.findings if one.id not in spoken and one.hidden_by is None]
    if others:
        yield "What else is wrong:"
    for one in others:
        yield from prose(f"{one.text}.", width, hanging="  ")
        yield from _about(look, one, width, "    ")
        yield from _hidden(status, (one.id,), width, "    ")
    if status.sound:
        yield from prose(status.sound, width, indent="")


def _about(
    look: StatusView, one: HeadlineClause | FindingStatus, width: int, indent: str
) -> Iterator[str]:
    """Yield lines with the advice, start time, alert, and runbook URL of a clause or finding."""
    if one.do:
        yield from prose(f"Do: {one.do}", width, indent=indent)
    parts = [
        _since(one, look.status),
        one.alert.text if one.alert else "",
        f"more: {look.runbook}#{one.runbook}" if one.runbook else "",
    ]
    yield from prose("; ".join(filter(None, parts)), width, indent=f"{indent}  ")


def _hidden(status: Status, by: tuple[str, ...], width: int, indent: str) -> Iterator[str]:
    found = {*by}
    for _ in status.findings:  # a hidden finding may hide others
        found |= {one.id for one in status.findings if one.hidden_by in found}
    texts = [one.text for one in status.findings if one.id in found.difference(by)]
    if texts:
        yield from prose(f"With it: {'; '.join(texts)}", width, indent=indent)


def _since(one: HeadlineClause | FindingStatus, status: Status) -> str:
    """Return a string such as `since 14:03 (5 min)`, or an empty string for less than a second."""
    stood = (status.at - one.since).total_seconds() if one.since else 0.0
    if one.since is None or stood < 1:
        return ""
    older = " or before" if one.or_before else ""
    return f"since {local(one.since.timestamp()):%H:%M}{older} ({duration(stood)})"


def body(status: Status, width: int) -> Iterator[str]:
    """Yield the lines about GPUs, jobs, past events, data paths, and the host."""
    if status.gpus:
        yield ""
        yield from prose(", ".join(status.machine.models), width)
        yield ""
        yield from gpus(status, width)
        if status.divided:
            words = f"time of all GPUs, last 10 s: {status.divided}"
            yield from prose(words, width, hanging="  ")
        yield from why(status, width)
    if status.jobs:
        yield ""
        yield from jobs(status, width)
    yield from past(status, width)
    yield ""
    yield from paths(status, width)
    yield ""
    yield from prose(status.host.text, width, indent="")
    unknown = summary(status.absences, 2)
    where = f"{unknown}. `dgx-telemetry check` has all." if unknown else ""
    yield from prose(where, width, indent="", hanging="  ")


FIGURES = ("active", "SM", "mem GiB", "power W", "temp C")


def gpus(status: Status, width: int) -> list[str]:
    """Return a table with a row for each GPU, followed by a row for each of its MIG instances."""
    rows = []
    for gpu in status.gpus:
        now = gpu.figures
        state = f"{gpu.text}, with a fault" if gpu.faulty else gpu.text
        rows.append(
            [
                *(str(gpu.gpu), state, share(now.activity_ratio), share(now.sm_active_ratio)),
                of(now.memory_used_bytes, now.memory_total_bytes, GIB),
                of(now.power_watts, now.power_limit_watts),
                of(now.temperature_celsius, now.temperature_limit_celsius),
            ]
        )
        for one in gpu.instances:
            named = f"{gpu.gpu}:{one.number}", f"MIG {one.profile}"
            shares = share(one.activity_ratio), share(one.sm_active_ratio)
            memory = of(one.memory_used_bytes, one.memory_total_bytes, GIB)
            rows.append([*named, *shares, memory, "", ""])
    spare = ["SM", "temp C", "power W", "mem GiB"]
    return table(("gpu", "state", *FIGURES), rows, ("gpu", *FIGURES), width=width, spare=spare)


def why(status: Status, width: int) -> Iterator[str]:
    """Yield lines with the reasons for the state of each group of GPUs, and the advice."""
    notes = {gpu.gpu: gpu.note for gpu in status.gpus if gpu.note}
    for group in status.groups:
        reason = ", ".join(group.why)
        own = [number for number in group.gpus if number in notes]
        if not reason and not group.do and not own:
            continue
        yield ""
        yield from prose(f"{group.name}: {reason or group.text}. {group.do or ''}", width)
        for number in own:
            yield from prose(f"GPU {number}: {notes[number]}", width)


def jobs(status: Status, width: int) -> Iterator[str]:
    """Yield the lines of a table with one row per running job, and then the details of each job."""
    header = ("job", "GPUs", "seen for", "lost of GPU-h", "progress")
    rows = []
    for job in status.jobs:
        lost = " of ".join(amount(part / HOUR) for part in (job.lost_gpu_seconds, job.gpu_seconds))
        rows.append([job.title, job.name, duration(job.watched_seconds), lost, job.text])
    yield from table(header, rows, header[2:4], width=width, spare=header[2:4])
    for job in status.jobs:
        saving = job.saving if job.watched_seconds >= MINUTE else None
        parts = [job.user and f"of {job.user}", job.money, saving]
        said = "; ".join(filter(None, parts))
        yield from prose(f"{job.title}: {said}" if said else "", width)
    if all(job.cost is None for job in status.jobs):
        yield from prose(NO_PRICE, width)
    yield from prose(status.unnamed or "", width)


def past(status: Status, width: int) -> Iterator[str]:
    """Yield a line for each of the most recent events that have ended."""
    over = [event for event in status.events if event.until][:5]
    if over:
        yield ""
        yield "Over, in the last 24 h:"
    for event in over:
        from_to = f"{_clock(event.since)} to {_clock(event.until)}"
        yield from prose(f"{from_to}: {event.text}", width, hanging="  ")


def _clock(at: datetime | None) -> str:
    return f"{local(at.timestamp()):%a %H:%M}" if at else "before the agent's start"


def paths(status: Status, width: int) -> Iterator[str]:
    """Yield lines about the data paths with traffic, then other paths, and then link rates."""
    rows = [_path(row) for row in status.path_rows if row.moves]
    header = ("path", "device", "in/read each", "%", "out/write each", "%", "")
    spare = ("out/write each", "in/read each")
    yield from table(header, rows, header[2:6], width=width, spare=spare) if rows else ()
    still: dict[str, list[str]] = {}
    for row in status.path_rows:
        if not row.moves:
            still.setdefault(row.text, []).append(f"{row.path} {row.name}")
    for text, names in still.items():
        yield from prose(f"{text}: {', '.join(names)}", width, hanging="  ")
    rates = "; ".join(f"{one.path} {one.rates}" for one in status.path_kinds if one.rates)
    if rates:
        yield from prose(f"link rates: {rates}", width, hanging="  ")


def _path(row: PathRow) -> tuple[str, ...]:
    inward = row.inward or "-", share(row.inward_ratio)
    return (row.path, row.name, *inward, row.outward or "-", share(row.outward_ratio), row.text)
