"""Verdicts on tapes of loads whose verdict is known, recorded on real GPUs, and without GPM.

The tapes and `labels.json`, which says what is right on each from when on, were written by
`python -m tests.hardware verdicts peers`. The same code is tried on tapes of a simulated machine.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.assembly import build_agent, taped_hardware
from agent.clock import FrozenClock
from agent.model import Snapshot
from tests.hardware.blindness import without_gpm
from tests.hardware.judging import Score, Span, expected_of, score, ticks
from tests.hardware.stage import SimulatedStage
from tests.hardware.trials import ALONE, TOGETHER, config
from tests.hardware.verdicts import CAUSE_GOAL, LABELS, STATE_GOAL, chosen, play

TAPES = Path(__file__).parent / "tapes" / "labelled"
LEAST_TAPES = 18
"""So many were recorded: they cannot vanish unnoticed."""

LEAST_TICKS = 5
"""Fewer judged ticks than this say nothing."""

LATE = 0.3
"""Seconds by which a replayed tick comes after the tick that was taped: it finds its answers."""

WITHOUT_GPM: dict[str, tuple[float, float]] = {"balanced": (0.75, 0.9), "graph": (0.9, 0.9)}
"""By tape: least shares of right states and causes without GPM, where the goals are not reached.
Measured on the tapes: the driver's buffer is read each 5 s, GPU by GPU in turns, so that a verdict
comes up to 9 s after the load began, and the first of the ticks that count here may come before."""


def labels(directory: Path) -> dict[str, Any]:
    path = directory / LABELS
    return dict(json.loads(path.read_text())) if path.exists() else {}


ENTRIES = labels(TAPES)


def replayed(tape: Path, seconds: float, *, gpm: bool = True) -> list[Snapshot]:
    """What an agent makes of a tape, tick by tick."""
    clock = FrozenClock()
    hardware = taped_hardware(tape, clock)
    agent = build_agent(config(), hardware if gpm else without_gpm(hardware), clock, inline=True)
    found = []
    while clock.monotonic() <= seconds:
        asyncio.run(agent.poller.tick())
        found.append(agent.poller.latest)
        clock.advance(1.0 if len(found) > 1 else 1.0 + LATE)
    return found


def scores(directory: Path, name: str, *, gpm: bool = True) -> dict[str, Score]:
    """How right the verdicts on each GPU of a tape are."""
    entry = labels(directory)[name]
    span = Span(*(entry[field] for field in Span._fields))
    tape = directory / f"{name}.tape"
    best = replayed(tape, span.until)
    told = best if gpm else replayed(tape, span.until, gpm=False)
    return {
        gpu: score(ticks(told, gpu), expected_of(label), span, truth=ticks(best, gpu))
        for gpu, label in entry["gpus"].items()
    }


def short_of(found: dict[str, Score], state: float, cause: float) -> list[str]:
    """What lies below these shares."""
    return [
        f"GPU {gpu}: {score}"
        for gpu, score in found.items()
        if score.ticks < LEAST_TICKS
        or score.state < state
        or (score.cause is not None and score.cause < cause)
    ]


def test_every_tape_is_labelled_and_every_label_has_its_tape() -> None:
    assert sorted(ENTRIES) == sorted(path.stem for path in TAPES.glob("*.tape"))
    assert len(ENTRIES) >= LEAST_TAPES
    assert WITHOUT_GPM.keys() <= ENTRIES.keys()


@pytest.mark.parametrize("name", ENTRIES)
def test_what_was_recorded_is_judged_right(name: str) -> None:
    assert short_of(scores(TAPES, name), STATE_GOAL, CAUSE_GOAL) == []


@pytest.mark.parametrize("name", ENTRIES)
def test_without_gpm_it_is_judged_as_well_as_measured(name: str) -> None:
    least = WITHOUT_GPM.get(name, (STATE_GOAL, CAUSE_GOAL))
    assert short_of(scores(TAPES, name, gpm=False), *least) == []


SIMULATED = ("disk", "copies", "vgg16", "rank0-double")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tapes of a simulated machine that plays scenarios in place of the loads."""
    directory = tmp_path_factory.mktemp("tapes")
    for trial in chosen((*ALONE, *TOGETHER), SIMULATED):
        play(replace(trial, seconds=12.0), SimulatedStage("dgx-h100"), tapes=directory)
    return directory


@pytest.mark.parametrize("name", SIMULATED)
@pytest.mark.parametrize("gpm", [True, False])
def test_a_tape_of_a_simulated_machine_is_judged_right(
    simulated: Path, name: str, gpm: bool
) -> None:
    found = scores(simulated, name, gpm=gpm)
    assert len(found) == (8 if name == "rank0-double" else 1)
    assert short_of(found, STATE_GOAL, CAUSE_GOAL) == []


def test_a_wrong_label_is_found_out(simulated: Path, tmp_path: Path) -> None:
    wrong = labels(simulated)["disk"]
    wrong["gpus"]["0"]["pairs"] = ["starved/cpu"]
    (tmp_path / LABELS).write_text(json.dumps({"disk": wrong}))
    (tmp_path / "disk.tape").write_bytes((simulated / "disk.tape").read_bytes())
    found = scores(tmp_path, "disk")
    assert (found["0"].state, found["0"].cause, found["0"].first) == (1.0, 0.0, None)
    assert len(short_of(found, STATE_GOAL, CAUSE_GOAL)) == 1
