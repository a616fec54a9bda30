"""`dgx-telemetry once`: one look at the machine, as a table or as JSON."""

import argparse
import json
import textwrap
from collections.abc import Iterator

from agent.assembly import build_agent
from agent.clock import SystemClock
from agent.commands.look import settled, take
from agent.commands.options import config_of, hardware_of
from agent.commands.table import UNKNOWN, number, of, share, table
from agent.diagnosis import accounting
from agent.look import Look, Point
from agent.model import Metric, Reason, Snapshot
from agent.sources import (
    activity,
    cpu,
    disk,
    gpu,
    infiniband,
    memory,
    network,
    nvlink,
    pcie,
    power,
    pressure,
    system,
    temperature,
)
from exporters.snapshot_json import document

GB = 1e9
WIDTH = 78
GPU_HEADER = ("gpu", "state", "active", "SM", "mem GB", "power W", "temp C", "links")
RATE_HEADER = ("path", "device", "in MB/s", "out MB/s")

RATES: tuple[tuple[str, Metric, Metric], ...] = (
    ("nvlink", nvlink.RECEIVED, nvlink.TRANSMITTED),
    ("pcie", pcie.RECEIVED, pcie.TRANSMITTED),
    ("disk", disk.READ_BYTES, disk.WRITTEN_BYTES),
    ("network", network.RECEIVED, network.TRANSMITTED),
    ("infiniband", infiniband.RECEIVED, infiniband.TRANSMITTED),
)


def run(arguments: argparse.Namespace) -> int:
    """Look for a second, print, end."""
    clock = SystemClock()
    agent = build_agent(config_of(arguments), settled(hardware_of(arguments, clock), clock), clock)
    first, last = take(agent)
    if arguments.json:
        print(json.dumps(document(last, last.at), indent=2))
    else:
        print("\n".join(page(first, last)))
    return 0


def page(first: Snapshot, last: Snapshot) -> Iterator[str]:
    """The look in words: the machine, its GPUs, what moves."""
    look = Look(last)
    yield headline(look)
    gpus = look.labelled(gpu.INFO)
    if gpus:
        yield f"  {', '.join(sorted({labels['model'] for labels in gpus}))}"
        yield ""
        yield from table(GPU_HEADER, [_gpu_row(look, g["gpu"], g["uuid"]) for g in gpus])
        yield from _why(look)
    yield ""
    rates = list(_rates(Look(first, last.at), look))
    yield from table(RATE_HEADER, rates)
    if any(UNKNOWN in row for row in rates):
        yield f"  {UNKNOWN} not read twice within this second: dear counters take turns"
    yield ""
    yield _host_line(look)


def headline(look: Look) -> str:
    """The machine in one line."""
    for info in look.labelled(system.INFO):
        name = info["title"] or info["product"] or "This machine"
        found = look.value(system.GPUS)
        if found is None:
            why = {
                a.reason
                for a in look.snapshot.absences(look.snapshot.at)
                if a.metric is system.GPUS
            }
            answer = (
                "its NVIDIA driver does not answer" if Reason.STALLED in why else "no NVIDIA driver"
            )
            return f"{name}, {answer}"
        expected = look.value(system.GPUS_EXPECTED)
        gpus = f"{found:.0f} of {expected:.0f} GPUs" if expected else f"{found:.0f} GPUs"
        return f"{name}, driver {info['driver_version']}, {gpus}"
    return "This machine did not answer"


def _gpu_row(look: Look, index: str, uuid: str) -> tuple[str, ...]:
    def value(metric: Metric, *labels: str) -> float | None:
        return look.value(metric, index, uuid, *labels)

    return (
        index,
        _state(look, uuid),
        share(value(activity.ACTIVITY)),
        share(value(activity.SM_ACTIVE)),
        of(value(memory.USED), value(memory.TOTAL), GB),
        of(value(power.POWER), value(power.POWER_LIMIT)),
        number(value(temperature.TEMPERATURE)),
        of(value(nvlink.LINKS), value(nvlink.LINKS_EXPECTED)),
    )


def _state(look: Look, uuid: str) -> str:
    """Where the GPU's time goes, with the cause if there is one; a dash while nothing is known."""
    judged = look.where(accounting.STATE, uuid=uuid)
    pairs = (labels[2:] for labels, verdict in judged.items() if verdict)
    return next(
        (state if cause == "none" else f"{state}: {cause}" for state, cause in pairs), UNKNOWN
    )


def _why(look: Look) -> Iterator[str]:
    """Each verdict that costs something, once: its GPUs, why, what to do."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for labels in look.labelled(accounting.VERDICT):
        if labels["advice"]:
            reasons.setdefault((labels["summary"], labels["advice"]), []).append(labels["gpu"])
    for (summary, advice), gpus in reasons.items():
        found = look.where(accounting.EVIDENCE, gpu=gpus[0], role="evidence")
        yield ""
        several = "GPUs" if len(gpus) > 1 else "GPU"
        words = f"{several} {', '.join(gpus)} {summary}: {', '.join(key[-1] for key in found)}. "
        yield from textwrap.wrap(words + advice, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _rates(before: Look, after: Look) -> Iterator[tuple[str, ...]]:
    for path, incoming, outgoing in RATES:
        for labels in sorted(set(after.all(incoming)) | set(after.all(outgoing))):
            rates = [
                _rate(before.point(metric, *labels), after.point(metric, *labels))
                for metric in (incoming, outgoing)
            ]
            device = f"gpu{labels[0]}" if "gpu" in incoming.labels else ":".join(labels)
            yield (path, device, *(number(rate, 1e6, 1) for rate in rates))


def _rate(before: Point | None, after: Point | None) -> float | None:
    """Units per second between two readings; None where there was only one."""
    if before is None or after is None or after[0] <= before[0] or after[1] < before[1]:
        return None
    return (after[1] - before[1]) / (after[0] - before[0])


def _host_line(look: Look) -> str:
    stalls = ", ".join(
        f"{resource} {number(look.value(pressure.PRESSURE, resource, 'some'))} s"
        for resource in ("cpu", "io", "memory")
    )
    busy = share(look.value(cpu.BUSY))
    return f"CPUs busy {busy}; stalled for want of it since boot: {stalls}"
