"""`dgx-telemetry once`: one look at the machine, as a table or as JSON: what the live page says."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from agent.assembly import build_agent
from agent.clock import SystemClock
from agent.commands.flow import flows
from agent.commands.look import settled, take
from agent.commands.naming import ranges
from agent.commands.options import config_of, hardware_of
from agent.commands.table import UNKNOWN, number, of, prose, share, table, terminal_width
from agent.commands.view import view_of
from agent.look import Look
from agent.model import Reason
from agent.sources import cpu, nvlink, pressure, system
from exporters.live.frame import whole
from exporters.live.scene import Scene
from exporters.live.understanding import understand
from exporters.snapshot_json import document

Document = dict[str, Any]

GIB = 1 << 30
MHZ = 1e6
WIDE = 100
"""Columns from which there is room for more."""

Cell = Callable[[Document, Look], str]
"""What stands in one column of the row of a GPU."""


def run(arguments: argparse.Namespace) -> int:
    """Look for a second, print, end."""
    clock = SystemClock()
    hardware = settled(hardware_of(arguments, clock), clock)
    agent = build_agent(config_of(arguments), hardware, clock)
    first, last = take(agent)
    if arguments.json:
        print(json.dumps(document(last, last.at), indent=2))
        return 0
    view = view_of(agent, hardware)
    scene, known = Scene(view), understand(view)
    scene.take(first, known)  # what moved between the two has a rate
    scene.take(last, known)
    frame = whole(scene.machine(), scene.tick())
    print("\n".join(page(frame, Look(last), terminal_width())))
    return 0


def page(frame: Document, look: Look, width: int) -> Iterator[str]:
    """The look in words: the verdict, the machine, its GPUs, what moves, what is wrong."""
    yield from prose(f"{frame['headline']}.", width, indent="")
    yield ""
    yield machine(look)
    if frame["gpus"]:
        yield f"  {', '.join(sorted({gpu['model'] for gpu in frame['gpus']}))}"
        yield ""
        yield from gpus(frame["gpus"], look, width)
        yield from why(frame["gpus"], width)
    yield ""
    yield from flows(frame["paths"], width)
    yield ""
    yield from prose(host(look), width, indent="")
    yield ""
    yield "Wrong:" if frame["findings"] else "Nothing is missing, down or below its rate."
    for finding in frame["findings"]:
        yield from prose(finding, width, hanging="  ")


def machine(look: Look) -> str:
    """Which machine this is, in one line."""
    for info in look.labelled(system.INFO):
        name = info["title"] or info["product"] or "This machine"
        found = look.value(system.GPUS)
        if found is None:
            absences = look.snapshot.absences(look.snapshot.at)
            why_not = {a.reason for a in absences if a.metric is system.GPUS}
            silent = Reason.STALLED in why_not
            answer = "its NVIDIA driver does not answer" if silent else "no NVIDIA driver"
            return f"{name}, {answer}"
        expected = look.value(system.GPUS_EXPECTED)
        answering = f"{found:.0f} of {expected:.0f} GPUs" if expected else f"{found:.0f} GPUs"
        return f"{name}, driver {info['driver_version']}, {answering}"
    return "This machine did not answer"


def gpus(found: Iterable[Document], look: Look, width: int) -> list[str]:
    """A row for each GPU."""
    columns = COLUMNS if width < WIDE else (*COLUMNS, *MORE)
    rows = [[cell(gpu, look) for _, cell in columns] for gpu in found]
    return table([name for name, _ in columns], rows, width=width)


def _of(name: str, scale: float = 1.0) -> Cell:
    def cell(gpu: Document, _: Look) -> str:
        meter = _meters(gpu)[name]
        return of(meter["value"], meter["limit"], scale)

    return cell


def _links(gpu: Document, look: Look) -> str:
    labels = gpu["gpu"], gpu["uuid"]
    return of(look.value(nvlink.LINKS, *labels), look.value(nvlink.LINKS_EXPECTED, *labels))


def _meters(gpu: Document) -> dict[str, Document]:
    return {meter["name"]: meter for meter in gpu["meters"]}


def _state(gpu: Document) -> str:
    """Where the GPU's time goes, with the cause if there is one."""
    if gpu["lost"]:
        return "lost"
    if gpu["state"] is None:
        return UNKNOWN
    return str(gpu["state"]) + (f": {gpu['cause']}" if gpu["cause"] != "none" else "")


def _hottest(gpu: Document, _: Look) -> str:
    return number(_meters(gpu)["temperature"]["limit"])


COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("gpu", lambda gpu, _: gpu["gpu"]),
    ("state", lambda gpu, _: _state(gpu)),
    ("active", lambda gpu, _: share(_meters(gpu)["activity"]["value"])),
    ("SM", lambda gpu, _: share(_meters(gpu)["sm"]["value"])),
    ("mem GiB", _of("memory", GIB)),
    ("power W", _of("power")),
    ("temp C", lambda gpu, _: number(_meters(gpu)["temperature"]["value"])),
    ("links", _links),
)
MORE: tuple[tuple[str, Cell], ...] = (("SM MHz", _of("clock", MHZ)), ("limit C", _hottest))


def why(found: Iterable[Document], width: int) -> Iterator[str]:
    """Each verdict that costs something, once: its GPUs, why, what to do."""
    costly = sorted((gpu for gpu in found if gpu["advice"]), key=_verdict)
    for _, group in groupby(costly, key=_verdict):
        alike = list(group)
        first, several = alike[0], len(alike) > 1
        names = ranges(int(gpu["gpu"]) for gpu in alike)
        yield ""
        words = f"GPU{'s' * several} {names} {first['sentence']}. {first['advice']}"
        yield from prose(words, width)


def _verdict(gpu: Document) -> tuple[str, str]:
    return gpu["state"], gpu["cause"]


def host(look: Look) -> str:
    """What the host's CPUs do, in one sentence."""
    stalls = ", ".join(
        f"{resource} {number(look.value(pressure.PRESSURE, resource, 'some'))} s"
        for resource in ("cpu", "io", "memory")
    )
    busy = share(look.value(cpu.BUSY))
    return f"CPUs busy {busy}; time since boot in which some work waited: {stalls}"
