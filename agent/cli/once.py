"""`dgx-telemetry once`: the machine now, as a table or as JSON: what the live page says."""

import argparse
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from agent.cli.assembly import build_agent
from agent.cli.first_readings import first_snapshot_now, settled
from agent.cli.flow import flows
from agent.cli.options import hardware_of, settings_of
from agent.cli.table import UNKNOWN, number, of, prose, share, table, terminal_width
from agent.cli.view import view_of
from agent.clock import SystemClock
from agent.errors import printable
from agent.model import Reason, ranges
from agent.series import SampleStore
from agent.sources import cpu, nvlink, pressure, system
from exporters.job_words import COSTLY
from exporters.live.findings_document import findings_document
from exporters.live.frame import whole
from exporters.live.page_state import PageState
from exporters.snapshot_json import document
from exporters.words import duration

Document = dict[str, Any]

GIB = 1 << 30
HOUR = 3600.0
TOLD = 36.0
"""GPU-seconds from which what a job lost of them is told: a hundredth of an hour."""

MHZ = 1e6
SEEN = 0.05
"""Share of the time from which something is told."""

LONG = 10
"""Seconds from which it is told how long a state has lasted: before, only the agent is so young."""

WIDE = 118
"""Columns of the terminal from which every cell of MORE has room on one line."""

Cell = Callable[[Document, SampleStore], str]
"""What stands in one column of the row of a GPU."""


def run(arguments: argparse.Namespace) -> int:
    """Look for a second, print, end."""
    logging.getLogger().addHandler(logging.NullHandler())  # findings tell of what is wrong
    clock = SystemClock()
    hardware = settled(hardware_of(arguments, clock), clock)
    agent = build_agent(settings_of(arguments), hardware, clock)
    last = first_snapshot_now(agent)
    view = view_of(agent, hardware)
    page_state = PageState(view)
    page_state.take(last, findings_document(view))
    frame = whole(page_state.machine(), page_state.tick())
    if arguments.json:
        wrong = page_state.known.findings
        lead = {name: frame[name] for name in ("level", "headline", "action")}
        print(json.dumps(lead | document(replace(last, findings=wrong), last.at), indent=2))
        return 0
    print(printable("\n".join(page(frame, view.samples, terminal_width()))))
    return 0


def page(frame: Document, samples: SampleStore, width: int) -> Iterator[str]:
    """The snapshot in words: the verdict, what is wrong, the machine, its GPUs, what moves."""
    yield from verdict(frame, width)
    yield ""
    yield machine(samples)
    yield from body(frame, samples, width)


def verdict(frame: Document, width: int) -> Iterator[str]:
    """The whole machine in one sentence, what to do about it, and each finding."""
    yield from prose(f"{frame['headline']}.", width, indent="")
    if frame["action"]:
        yield from prose(f"Do: {frame['action']}", width, indent="")
    said = frame["headline"].lower()
    for alike in grouped(frame["findings"]):
        gpus = [int(one["gpu"]) for one in alike if one["gpu"]]
        named = f"GPUs {ranges(gpus)}: {alike[0]['text']}" if gpus[1:] else alike[0]["sentence"]
        if named.lower() not in said and alike[0]["sentence"].lower() not in said:
            yield from prose(named, width, hanging="  ")
            if alike[0]["action"] not in frame["action"]:
                yield from prose(alike[0]["action"], width, indent="    ")
    if not frame["findings"]:
        yield "All expected hardware is present and at full speed."


def grouped(findings: Sequence[Document]) -> Iterable[list[Document]]:
    """Findings that say the same of several GPUs go together; the worst stay first."""
    groups: dict[tuple[str, str], list[Document]] = {}
    for one in findings:
        groups.setdefault((one["kind"], one["text"]), []).append(one)
    return groups.values()


def body(frame: Document, samples: SampleStore, width: int) -> Iterator[str]:
    """GPUs, jobs, data paths and the host."""
    if frame["gpus"]:
        yield f"  {', '.join(sorted({gpu['model'] for gpu in frame['gpus']}))}"
        yield ""
        yield from gpus(frame["gpus"], samples, width)
        yield from times(frame["gpus"], width)
        yield from why(frame["gpus"], frame["action"], width)
    if frame["jobs"]:
        yield ""
        yield from jobs(frame["jobs"], width)
    yield ""
    yield from flows(frame["paths"], width)
    yield ""
    yield from prose(host(samples), width, indent="")


NO_GPUS = {
    Reason.STALLED: "its NVIDIA driver does not answer",
    Reason.NO_DRIVER: "no NVIDIA driver",
}


def machine(samples: SampleStore) -> str:
    """Which machine this is, in one line."""
    for info in samples.labelled(system.INFO):
        name = info["title"] or info["product"] or "This machine"
        found = samples.value(system.GPUS)
        if found is None:
            absence = samples.absence(system.GPUS)
            reason = absence.reason if absence else Reason.NO_DRIVER
            return f"{name}, {NO_GPUS.get(reason, 'its GPUs could not be asked')}"
        expected = samples.value(system.GPUS_EXPECTED)
        answering = f"{found:.0f} of {expected:.0f} GPUs" if expected else f"{found:.0f} GPUs"
        return f"{name}, driver {info['driver_version']}, {answering}"
    return "This machine did not answer"


def gpus(found: Iterable[Document], samples: SampleStore, width: int) -> list[str]:
    """A row for each GPU."""
    columns = COLUMNS if width < WIDE else (*COLUMNS, *MORE)
    rows = [[cell(gpu, samples) for _, cell in columns] for gpu in found]
    return table([name for name, _ in columns], rows, width=width)


def _of(name: str, scale: float = 1.0) -> Cell:
    def cell(gpu: Document, _: SampleStore) -> str:
        meter = _meters(gpu)[name]
        return of(meter["value"], meter["limit"], scale)

    return cell


def _links(gpu: Document, samples: SampleStore) -> str:
    labels = gpu["gpu"], gpu["uuid"]
    return of(samples.value(nvlink.LINKS, *labels), samples.value(nvlink.LINKS_EXPECTED, *labels))


def _meters(gpu: Document) -> dict[str, Document]:
    return {meter["name"]: meter for meter in gpu["meters"]}


def _state(gpu: Document) -> str:
    """Where the GPU's time goes, with the cause if there is one."""
    if gpu["lost"]:
        return "lost"
    if gpu["state"] is None:
        return UNKNOWN
    return _pair(gpu["state"], gpu["cause"])


COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("gpu", lambda gpu, _: gpu["gpu"]),
    ("state", lambda gpu, _: _state(gpu)),
    ("active", lambda gpu, _: share(_meters(gpu)["activity"]["value"])),
    ("SM", lambda gpu, _: share(_meters(gpu)["sm"]["value"])),
    ("mem GiB", _of("memory", GIB)),
    ("power W", _of("power")),
    ("temp C", _of("temperature")),
    ("links", _links),
)


def _who(gpu: Document, _: SampleStore) -> str:
    """The largest process, and how many more."""
    first, *rest = [
        f"{p['program'] or 'process'} {p['pid']} {p['user']}".strip() for p in gpu["processes"]
    ] or [""]
    return f"{first} +{len(rest)}" if rest else first


MORE: tuple[tuple[str, Cell], ...] = (
    ("SM MHz", _of("clock", MHZ)),
    ("process", _who),
)


def times(found: Iterable[Document], width: int) -> Iterator[str]:
    """Where the time of GPUs went in the last seconds, where it went to more than one thing."""
    divided = sorted((gpu for gpu in found if len(_parts(gpu)) > 1), key=_parts)
    for pairs, group in groupby(divided, key=_parts):
        alike = list(group)
        names = ranges(int(gpu["gpu"]) for gpu in alike)
        means = [(sum(g["shares"][pair] for g in alike) / len(alike), pair) for pair in pairs]
        words = ", ".join(f"{share(m)} {_pair(*p.split('/'))}" for m, p in sorted(means)[::-1])
        yield from prose(f"time of GPU{'s' * (len(alike) > 1)} {names}: {words}", width)


def _parts(gpu: Document) -> tuple[str, ...]:
    """What the GPU's time went to."""
    return tuple(sorted(pair for pair, part in gpu["shares"].items() if part >= SEEN))


def _pair(state: str, cause: str) -> str:
    return state if cause == "none" else f"{state}: {cause}"


def why(found: Iterable[Document], told: str, width: int) -> Iterator[str]:
    """Each verdict that costs something, once: its GPUs, why, what to do where that is not `told`
    above."""
    costly = sorted((gpu for gpu in found if gpu["advice"]), key=_verdict)
    for _, group in groupby(costly, key=_verdict):
        alike = list(group)
        first, several = alike[0], len(alike) > 1
        names = ranges(int(gpu["gpu"]) for gpu in alike)
        yield ""
        seconds = min(gpu["seconds"] for gpu in alike)
        stood = f" for {duration(seconds)}" if seconds >= LONG else ""
        reason = first["sentence"].removeprefix(first["summary"])
        differ = len({gpu["sentence"] for gpu in alike}) > 1
        example = f", for example GPU {first['gpu']}" * differ
        advice = f" {first['advice']}" * (first["advice"] not in told)
        words = f"GPU{'s' * several} {names} {first['summary']}{stood}{example}{reason}.{advice}"
        yield from prose(words, width)
        for gpu in alike:
            if gpu["note"]:
                yield from prose(f"GPU {gpu['gpu']}: {gpu['note']}", width)


def jobs(found: Iterable[Document], width: int) -> list[str]:
    """A row for each running job."""
    header = ("job", "GPUs", "seen for", "lost of GPU-h", "progress")
    rows = [
        [job["title"], job["gpus"], duration(job["watched"]), _lost(job, width), job["sentence"]]
        for job in found
    ]
    return table(header, rows, width=width)


def _lost(job: Document, width: int) -> str:
    """`0.12 of 0.16`, and to what most of it where there is room."""
    if job["gpu_seconds"] <= TOLD:
        return UNKNOWN
    worst = next((_pair(*pair) for *pair, _ in job["shares"] if pair[0] in COSTLY), "")
    hours = (number(job[part], HOUR, 2) for part in ("lost", "gpu_seconds"))
    return " of ".join(hours) + f", {worst}" * bool(worst and width >= WIDE)


def _verdict(gpu: Document) -> tuple[str, str]:
    return gpu["state"], gpu["cause"]


def host(samples: SampleStore) -> str:
    """What the host's CPUs do, in one sentence."""
    rates = {
        resource: samples.rate(pressure.PRESSURE, resource, "some", seconds=LONG)
        for resource in pressure.KINDS
    }
    stalls = ", ".join(f"{name} {share(min(r, 1.0))}" for name, r in rates.items() if r is not None)
    busy = share(samples.value(cpu.BUSY))
    return f"CPUs busy {busy}" + f"; some task waited: {stalls}" * bool(stalls)
