"""`dgx-telemetry check`: which system this is, what answers and why the rest does not."""

import argparse
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

from agent.assembly import build_agent
from agent.bandwidth import LIMIT, LIMIT_INFO
from agent.clock import SystemClock
from agent.commands.look import settled, take
from agent.commands.once import headline
from agent.commands.options import config_of, hardware_of
from agent.commands.table import table
from agent.findings import findings
from agent.health import SOURCE_UP
from agent.look import Look
from agent.model import Absence, Reason, Snapshot
from agent.sources import chassis, power, system
from agent.specs import SystemSpec

SOMETHING_WRONG = 1


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; exit status 1 if something is wrong."""
    clock = SystemClock()
    agent = build_agent(config_of(arguments), settled(hardware_of(arguments, clock), clock), clock)
    _, last = take(agent)
    spec = agent.recognise(agent.gpus.fleet)
    print("\n".join(page(last, spec)))
    return SOMETHING_WRONG if list(findings(last, spec)) else 0


def page(snapshot: Snapshot, spec: SystemSpec | None) -> Iterator[str]:
    """The findings in words; `spec` is the sheet of this system, where there is one."""
    look = Look(snapshot)
    yield headline(look)
    for info in look.labelled(system.INFO):
        recognised = f"{info['title']} ({info['system']})" if info["system"] else "not recognised"
        product = info["product"] or "not told by the firmware"
        yield f"  system: {recognised}"
        yield f"  product name: {product}"
    yield from (f"  {line}" for line in watts(look, spec))
    yield ""
    yield "Sources:"
    yield from _sources(look)
    yield ""
    yield "Limits:"
    header = ("path", "device", "direction", "GB/s", "origin", "source")
    yield from table(header, list(_limits(look)))
    yield ""
    yield "Absent values:"
    yield from _absent(snapshot)
    yield ""
    wrong = list(findings(snapshot, spec))
    yield "Wrong:" if wrong else "Nothing is wrong."
    for finding in wrong:
        yield from textwrap.wrap(finding, 78, initial_indent="  ", subsequent_indent="    ")


def watts(look: Look, spec: SystemSpec | None) -> Iterator[str]:
    """What the GPUs draw beside what they may, and what the whole box may; as far as is known."""
    drawn, limits = look.all(power.POWER), look.all(power.POWER_LIMIT)
    tdp = spec.values.get("tdp") if spec else None
    if drawn or limits or tdp:
        some = drawn and drawn.keys() < limits.keys()
        of = f" of {len(drawn)} of {len(limits)} GPUs" if some else ""
        now = f"{sum(drawn.values()):.0f} W now" if drawn else "not known"
        may = f", limits {added(limits.values())}" if limits else ""
        most = f", system maximum {tdp.base:.0f} W ({tdp.source})" if tdp else ""
        yield f"GPU power{of} {now}{may}{most}"
    for (sensor,), whole in sorted(look.all(chassis.POWER).items()):
        yield f"chassis power {whole:.0f} W now ({sensor})"


def added(limits: Iterable[float]) -> str:
    """`8 x 700 W = 5600 W`, or `2 x 250 W + 1 x 300 W = 800 W`."""
    counts = sorted(Counter(limits).items())
    total = sum(limit * number for limit, number in counts)
    parts = " + ".join(f"{number} x {limit:.0f} W" for limit, number in counts)
    return f"{parts} = {total:.0f} W"


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


def _limits(look: Look) -> Iterator[tuple[str, ...]]:
    """Every limit; GPUs with the same one share a row, and single links are left to metrics."""
    devices: defaultdict[tuple[str, str, str, str, str], set[str]] = defaultdict(set)
    for labels in look.labelled(LIMIT_INFO):
        key = (labels["path"], labels["device"], labels["gpu"], labels["uuid"], labels["direction"])
        speed = look.value(LIMIT, *key)
        if labels["path"] != "nvlink" or ":" not in labels["device"]:
            row = (labels["path"], labels["direction"], f"{(speed or 0) / 1e9:.3f}")
            devices[*row, labels["origin"], labels["source"]].add(labels["device"])
    for (path, direction, speed_text, origin, source), names in sorted(devices.items()):
        yield path, _listed(names), direction, speed_text, origin, source


def _absent(snapshot: Snapshot) -> Iterator[str]:
    """What is absent, by reason: who, why, then the names."""
    metrics: defaultdict[tuple[Reason, str, str], set[str]] = defaultdict(set)
    devices: defaultdict[tuple[Reason, str, str], set[str]] = defaultdict(set)
    for absence in snapshot.absences(snapshot.at):
        devices[absence.reason, absence.detail, absence.metric.name].add(_device(absence))
    for (reason, detail, metric), names in devices.items():
        metrics[reason, detail, _listed(names)].add(metric)
    for (reason, detail, where), names in sorted(metrics.items()):
        title = f"{reason.value}{', ' + where if where else ''}: {detail}"
        yield from textwrap.wrap(title, 78, initial_indent="  ", subsequent_indent="    ")
        yield from textwrap.wrap(
            " ".join(sorted(names)), 76, initial_indent="      ", subsequent_indent="      "
        )


def _listed(devices: set[str]) -> str:
    """Devices in a few words: neighbours become a range."""
    gpus = sorted(int(name[3:]) for name in devices if name.startswith("gpu"))
    others = sorted(name for name in devices if name and not name.startswith("gpu"))
    runs = [list(run) for _, run in groupby(gpus, key=lambda index: index - gpus.index(index))]
    ranges = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return ", ".join([*([f"gpu{','.join(ranges)}"] if ranges else []), *others])


def _device(absence: Absence) -> str:
    names = dict(zip(absence.metric.labels, absence.labels, strict=False))
    return f"gpu{names['gpu']}" if names.get("gpu") else names.get("device", "")
