"""Every scenario with every fault of one system, odd machines, and the rules of all their views."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pynvml
import pytest

from agent.cli.once import StatusView, page
from agent.errors import BadInput
from agent.simulator import FAULTS, SCENARIOS
from agent.simulator.driver import address_of
from agent.simulator.scenarios import TOUR
from agent.status.model import FindingStatus, Level, Status
from tests.support.fake_gpus import OddNvml
from tests.support.machine_controls import lose
from tests.support.machines import first_gpus
from tests.support.nightly import NIGHTLY
from tests.support.statuses import Shown, shown

ILL = 1
"""Index of the GPU that answers otherwise."""


def lost(*gpus: int) -> Shown:
    """A machine that loses these GPUs after some seconds."""
    machine = shown("dgx-h100:training", gpus=3).run(4)
    for number in gpus:
        lose(machine.bench.machine, number)
    return machine


def ill(name: str, answer: Callable[[], Any], system: str = "dgx-h100:training") -> Shown:
    """A machine of whose GPUs one answers this question otherwise."""
    machine = shown(system, gpus=2)
    library = machine.bench.machine.nvml = OddNvml(machine.bench.machine)

    def answered(right: Any, handle: Any, *_: Any) -> Any:
        return answer() if address_of(handle) == address_of(library.handle(ILL)) else right

    library.answers[name] = answered
    return machine


def refuse() -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)


def without_gpus(*, driver: bool) -> Shown:
    machine = shown("k40:idle")
    library = machine.bench.machine.nvml = OddNvml(machine.bench.machine)
    library.missing = not driver
    library.answers["Count"] = 0
    return machine


BAD_INPUT: dict[str, Callable[[], Shown]] = {
    "a GPU is lost": lambda: lost(2),
    "all GPUs are lost": lambda: lost(*range(3)),
    "a GPU has no name": lambda: ill("Name", lambda: ""),
    "a GPU refuses its name": lambda: ill("Name", refuse),
    "a GPU refuses its links": lambda: ill("NvLinkState", refuse),
    "a GPU refuses its processes": lambda: ill("ComputeRunningProcesses_v3", refuse),
    "a GPU refuses its utilization": lambda: ill("Samples", refuse, "dgx-a100:training"),
    "the driver counts no GPU": lambda: without_gpus(driver=True),
    "no driver is loaded": lambda: without_gpus(driver=False),
    "seventy-two GPUs": lambda: shown("rack-72:nvlink-saturated"),
}

SYSTEM, GPUS = "dgx-h100", 2
CODES = ("xid-31", "xid-48", "xid-79")
"""XIDs of a program, of results in doubt, and of a GPU that is lost."""

CI = 29
"""Of so many pairs one is tried in the short form: each fault in turn."""

TEXTS = ("text", "name", "do", "brief")
MAY_BE_EMPTY = {"path_rows.text", "graph.text"}
BROKEN = re.compile(r"[{}]|\b(?:None|nan|inf)\b|\S  +\S|\(\)| [,.;:](?: |$)|-0 |^\W*$")
"""What no sentence has: a field that was not filled in, or a part that is missing."""


def _pairs() -> Iterator[str]:
    faults = [*(fault for fault in FAULTS if fault != "xid-CODE"), *CODES]
    for scenario in SCENARIOS:
        for fault in faults:
            name = f"{SYSTEM}:{scenario}+{fault}"
            try:
                first_gpus(name)
            except BadInput:
                continue
            if scenario != TOUR:
                yield name


PAIRS = tuple(_pairs())


def tried(names: Sequence[str]) -> list[Any]:
    """Return these names as parameters; one in twenty-nine in the short form."""
    return [
        pytest.param(name, marks=() if place % CI == 0 else NIGHTLY)
        for place, name in enumerate(names)
    ]


def played(name: str) -> Shown:
    """A machine after some minutes, of which it has looked at few seconds: what is read seldom was
    read twice."""
    return shown(name, gpus=GPUS).run(6).skip(65).skip(265)


def check(status: Status) -> None:
    """Assert the rules of a status."""
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status
    by_id = {one.id: one for one in status.findings}
    assert len(by_id) == len(status.findings)
    for one in status.findings:
        assert _root(one, by_id), f"{one.id} is hidden by nothing that is shown"
    assert all(by_id.keys() >= {*clause.findings} for clause in status.headline)
    assert sorted(n for group in status.groups for n in group.gpus) == sorted(
        gpu.gpu for gpu in status.gpus
    )
    assert (status.sound is None) == bool(status.findings)
    grave = [f for f in status.findings if f.level is Level.CRITICAL and not f.over]
    ill = {device for one in grave for device in one.devices}
    assert (status.level is Level.CRITICAL) >= bool(grave)
    green = [clause.text for clause in status.headline if grave and clause.level is Level.GOOD]
    parts = [(one.name, one.level, one.gpus) for one in status.groups]
    parts += [(one.name, one.level, one.gpus) for one in status.jobs]
    parts += [(f"GPU {one.gpu}", one.level, (one.gpu,)) for one in status.gpus]
    green += [
        name
        for name, level, gpus in parts
        if level is Level.GOOD and not ill.isdisjoint(f"gpu{number}" for number in gpus)
    ]
    assert green == [], "green beside a critical finding"
    assert [*broken(msgspec.to_builtins(status))] == []


def _root(one: FindingStatus, by_id: dict[str, FindingStatus]) -> bool:
    seen: set[str] = set()
    while one.hidden_by is not None and one.id not in seen:
        seen.add(one.id)
        one = by_id[one.hidden_by]
    return one.hidden_by is None


def broken(part: Any, where: str = "") -> Iterator[str]:
    """Yield the texts of people that are empty, or have a hole."""
    if isinstance(part, dict):
        for name, value in part.items():
            yield from broken(value, f"{where}.{name}".lstrip("."))
    elif isinstance(part, list):
        for value in part:
            yield from broken(value, where)
    elif where.rpartition(".")[2] in TEXTS and part is not None and where not in MAY_BE_EMPTY:
        yield from [f"{where}: {part!r}"] if BROKEN.search(part) else ()


def check_terminal(look: StatusView) -> None:
    """Assert that lines have no hole and fit, and that no two empty ones follow each other."""
    for width in (80, 150):
        lines = [*page(look, width)]
        empty = [number for number, line in enumerate(lines) if not line.strip()]
        assert not {number + 1 for number in empty}.intersection(empty)
        assert all(lines[end].strip() for end in (0, -1))
        assert [line for line in lines if line and re.fullmatch(r"\W*", line)] == []
        assert [line for line in lines if len(line) > width] == []
