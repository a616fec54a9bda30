"""`dgx-telemetry check`: the system, which metrics answer, and why others are absent."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from agent.cli.assembly import build_agent
from agent.cli.first_readings import first_snapshot_now, settled
from agent.cli.naming import listed
from agent.cli.once import machine
from agent.cli.options import hardware_of, settings_of
from agent.cli.table import USUAL, prose, table, terminal_width
from agent.clock import SystemClock
from agent.diagnosis.findings import findings
from agent.limits.paths import LIMIT, LIMIT_INFO
from agent.model import Absence, Reason, Snapshot
from agent.polling.health import SOURCE_UP
from agent.series import SampleStore
from agent.sources import chassis, power, system
from agent.specs import SystemSpec
from exporters.words import finding_text

SOMETHING_WRONG = 1


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; exit status 1 if something is wrong."""
    clock = SystemClock()
    hardware = settled(hardware_of(arguments, clock), clock)
    agent = build_agent(settings_of(arguments), hardware, clock)
    last = first_snapshot_now(agent)
    spec = agent.recognise(agent.gpus.inventory)
    print("\n".join(page(last, spec, terminal_width())))
    return SOMETHING_WRONG if list(findings(last, spec)) else 0


def page(snapshot: Snapshot, spec: SystemSpec | None, width: int = USUAL) -> Iterator[str]:
    """The findings in words; `spec` is the sheet of this system, where there is one."""
    samples = SampleStore.of(snapshot)
    yield machine(samples)
    for info in samples.labelled(system.INFO):
        recognised = f"{info['title']} ({info['system']})" if info["system"] else "not recognised"
        yield f"  system: {recognised}"
        yield f"  product name: {info['product'] or 'not told by the firmware'}"
    for line in watts(samples, spec):
        yield from prose(line, width, hanging="  ")
    yield ""
    yield "Sources:"
    yield from _sources(samples, width)
    yield ""
    yield "Limits:"
    header = ("path", "device", "direction", "GB/s", "origin", "source")
    yield from table(header, list(_limits(samples)), width=width)
    yield ""
    yield "Absent values:"
    yield from _absent(snapshot, width)
    yield ""
    wrong = list(findings(snapshot, spec))
    yield "Wrong:" if wrong else "Nothing is wrong."
    for finding in wrong:
        yield from prose(finding_text(finding), width, hanging="  ")


def watts(samples: SampleStore, spec: SystemSpec | None) -> Iterator[str]:
    """What the GPUs draw beside what they may, and what the whole box may; as far as is known."""
    drawn, limits = samples.all(power.POWER), samples.all(power.POWER_LIMIT)
    tdp = spec.values.get("tdp") if spec else None
    if drawn or limits or tdp:
        some = drawn and drawn.keys() < limits.keys()
        of = f" of {len(drawn)} of {len(limits)} GPUs" if some else ""
        now = f"{sum(drawn.values()):.0f} W now" if drawn else "not known"
        may = f", limits {added(limits.values())}" if limits else ""
        most = f", system maximum {tdp.base:.0f} W ({tdp.source})" if tdp else ""
        yield f"GPU power{of} {now}{may}{most}"
    for (sensor,), whole in sorted(samples.all(chassis.POWER).items()):
        yield f"chassis power {whole:.0f} W now ({sensor})"


def added(limits: Iterable[float]) -> str:
    """`8 x 700 W = 5600 W`, or `2 x 250 W + 1 x 300 W = 800 W`."""
    counts = sorted(Counter(limits).items())
    total = sum(limit * number for limit, number in counts)
    parts = " + ".join(f"{number} x {limit:.0f} W" for limit, number in counts)
    return f"{parts} = {total:.0f} W"


def _sources(samples: SampleStore, width: int) -> Iterator[str]:
    """The sources that are up on as few lines as they need, then each one that is down."""
    states = sorted((source, up) for (source,), up in samples.all(SOURCE_UP).items())
    yield from prose("up: " + " ".join(s for s, up in states if up), width, hanging="    ")
    yield from (f"  down: {source}" for source, up in states if not up)


def _limits(samples: SampleStore) -> Iterator[tuple[str, ...]]:
    """Every limit; devices and directions with the same one share a row, and single links are left
    to metrics."""
    ways: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for labels in samples.labelled(LIMIT_INFO):
        key = (labels["path"], labels["device"], labels["gpu"], labels["uuid"], labels["direction"])
        if labels["path"] != "nvlink" or ":" not in labels["device"]:
            speed = f"{(samples.value(LIMIT, *key) or 0) / 1e9:.3f}"
            row = labels["path"], speed, labels["origin"], labels["source"], labels["device"]
            ways[row].add(labels["direction"])
    devices: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for (path, speed, origin, source, device), directions in ways.items():
        way = "both" if len(directions) > 1 else min(directions)
        devices[path, way, speed, origin, source].add(device)
    for (path, way, speed, origin, source), names in sorted(devices.items()):
        yield path, listed(names), way, speed, origin, source


def _absent(snapshot: Snapshot, width: int) -> Iterator[str]:
    """What is absent, by reason: who, why, then the names."""
    metrics: defaultdict[tuple[Reason, str, str], set[str]] = defaultdict(set)
    devices: defaultdict[tuple[Reason, str, str], set[str]] = defaultdict(set)
    for absence in snapshot.absences(snapshot.at):
        devices[absence.reason, absence.detail, absence.metric.name].add(_device(absence))
    for (reason, detail, metric), names in devices.items():
        metrics[reason, detail, listed(names)].add(metric)
    for (reason, detail, where), names in sorted(metrics.items()):
        title = f"{reason.value}{', ' + where if where else ''}: {detail}"
        yield from prose(title, width, hanging="  ")
        yield from prose(" ".join(sorted(names)), width, indent="      ")


def _device(absence: Absence) -> str:
    names = dict(zip(absence.metric.labels, absence.labels, strict=False))
    return f"gpu{names['gpu']}" if names.get("gpu") else names.get("device", "")
