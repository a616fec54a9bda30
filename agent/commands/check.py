"""`dgx-telemetry check`: which system this is, what answers and why the rest does not."""

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Iterator

from agent.assembly import build_agent
from agent.clock import SystemClock
from agent.commands.look import settled, take
from agent.commands.once import headline
from agent.commands.options import config_of, hardware_of
from agent.health import SOURCE_UP
from agent.look import Look
from agent.model import Absence, Reason, Snapshot
from agent.sources import ecc, nvlink, pcie, system

SOMETHING_WRONG = 1

WRONG_REASONS = (Reason.STALLED, Reason.FAILED, Reason.LOST, Reason.DENIED, Reason.NO_DRIVER)
"""Reasons that somebody should see to; the others are what this hardware is like."""


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; exit status 1 if something is wrong."""
    clock = SystemClock()
    agent = build_agent(config_of(arguments), settled(hardware_of(arguments, clock), clock), clock)
    _, last = take(agent)
    print("\n".join(page(last)))
    return SOMETHING_WRONG if list(findings(last)) else 0


def page(snapshot: Snapshot) -> Iterator[str]:
    """The findings in words."""
    look = Look(snapshot)
    yield headline(look)
    for info in look.labelled(system.INFO):
        recognised = f"{info['title']} ({info['system']})" if info["system"] else "not recognised"
        product = info["product"] or "not told by the firmware"
        yield f"  system: {recognised}; product name: {product}"
    yield ""
    yield "Sources:"
    yield from _sources(look)
    yield ""
    yield "Absent values:"
    yield from _absent(snapshot)
    yield ""
    wrong = list(findings(snapshot))
    yield "Wrong:" if wrong else "Nothing is wrong."
    yield from (f"  {finding}" for finding in wrong)


def _sources(look: Look) -> Iterator[str]:
    """The sources that are up on as few lines as they need, then each one that is down."""
    states = sorted((source, up) for (source,), up in look.all(SOURCE_UP).items())
    yield from textwrap.wrap(
        "up: " + " ".join(s for s, up in states if up),
        76,
        initial_indent="  ",
        subsequent_indent="      ",
    )
    yield from (f"  down: {source}" for source, up in states if not up)


def _absent(snapshot: Snapshot) -> Iterator[str]:
    """What is absent, by reason: who, why, then the names."""
    metrics: defaultdict[tuple[Reason, str, str], set[str]] = defaultdict(set)
    devices: defaultdict[tuple[Reason, str, str], set[str]] = defaultdict(set)
    for absence in snapshot.absences(snapshot.at):
        devices[absence.reason, absence.detail, absence.metric.name].add(_device(absence))
    for (reason, detail, metric), names in devices.items():
        metrics[reason, detail, _listed(names)].add(metric)
    for (reason, detail, where), names in sorted(metrics.items()):
        yield f"  {reason.value}{', ' + where if where else ''}: {detail}"
        yield from textwrap.wrap(
            " ".join(sorted(names)), 76, initial_indent="      ", subsequent_indent="      "
        )


def _listed(devices: set[str]) -> str:
    """Devices in a few words: neighbours become a range."""
    gpus = sorted(int(name[3:]) for name in devices if name.startswith("gpu"))
    others = sorted(name for name in devices if name and not name.startswith("gpu"))
    if gpus and gpus == list(range(gpus[0], gpus[-1] + 1)) and len(gpus) > 1:
        return ", ".join([f"gpu{gpus[0]}-{gpus[-1]}", *others])
    return ", ".join([*(f"gpu{index}" for index in gpus), *others])


def _device(absence: Absence) -> str:
    names = dict(zip(absence.metric.labels, absence.labels, strict=False))
    return f"gpu{names['gpu']}" if "gpu" in names else names.get("device", "")


def findings(snapshot: Snapshot) -> Iterator[str]:
    """What is wrong, a sentence each: missing GPUs and links, sources down, refused health."""
    look = Look(snapshot)
    yield from _down(look)
    yield from _gpus(look)
    yield from _links(look)
    yield from _width(look)
    for labels in look.all(ecc.REMAP_FAILURE).items():
        if labels[1]:
            yield f"GPU {labels[0][0]}: a memory row could not be remapped, the GPU is due for RMA"
    for reason in WRONG_REASONS:
        metrics = {a.metric.name for a in snapshot.absences(snapshot.at) if a.reason is reason}
        if metrics:
            yield f"{len(metrics)} metrics have values that are absent: {reason.value}"


def _down(look: Look) -> Iterator[str]:
    for (source,), up in sorted(look.all(SOURCE_UP).items()):
        if not up:
            yield f"source {source} is down"


def _gpus(look: Look) -> Iterator[str]:
    found, expected = look.value(system.GPUS), look.value(system.GPUS_EXPECTED)
    if found is not None and expected is not None and found < expected:
        yield f"{found:.0f} of {expected:.0f} GPUs answer"


def _links(look: Look) -> Iterator[str]:
    for (index, uuid), expected in look.all(nvlink.LINKS_EXPECTED).items():
        up = look.value(nvlink.LINKS, index, uuid)
        if up is not None and up < expected:
            down = [
                key[2] for key, state in look.where(nvlink.LINK_UP, uuid=uuid).items() if not state
            ]
            names = f" (down: {', '.join(down)})" if down else ""
            yield f"GPU {index}: {up:.0f} of {expected:.0f} NVLinks are up{names}"


def _width(look: Look) -> Iterator[str]:
    for (index, uuid), limit in look.all(pcie.WIDTH_LIMIT).items():
        lanes = look.value(pcie.WIDTH, index, uuid)
        if lanes is not None and lanes < limit:
            yield f"GPU {index}: {lanes:.0f} of {limit:.0f} PCIe lanes are in use"
