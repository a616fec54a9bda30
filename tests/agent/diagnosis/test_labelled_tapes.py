"""Shares of the seconds on tapes of loads whose cause is known, recorded on real GPUs, and without
GPM.

The tapes and `labels.json`, which says what is right on each from when on, were written by
`python -m tests.hardware verdicts peers`. The same code is tried on tapes of a simulated machine.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.cli.assembly import build_agent, taped_hardware
from agent.model import BUSY, Cause, Pair, State
from tests.hardware.judging import Span, pair
from tests.hardware.load_runners import SimulatedLoads
from tests.hardware.trials import ALONE, TOGETHER, config
from tests.hardware.verdicts import LABELS, chosen, play
from tests.hardware.without_gpm import without_gpm
from tests.support.frozen_clock import FrozenClock
from tests.support.nightly import shortly
from tests.support.repository import TAPES

LABELLED = TAPES / "labelled"
LEAST_TAPES = 18
"""So many were recorded: they cannot vanish unnoticed."""

LEAST_SECONDS = 5.0
"""Less time judged than this says nothing."""

LATE = 0.3
"""Seconds by which a replayed tick comes after the tick that was taped: it finds its answers."""

RIGHT = 0.95
"""Share of the seconds lost, at least, that carry the labelled cause."""

LOST_AT_MOST = {True: 0.03, False: 0.05}
"""Share of a healthy load's seconds that may be lost, by whether GPM answers."""

BY_NVLINK: Pair = (State.COMMUNICATING, Cause.NVLINK)
EXPOSED_AT_MOST = 0.05
"""Share that a load may communicate and be healthy all the same: gradients that come while the GPU
computes slow it down by as much, and SM activity alone does not tell whether they do."""

LEAST_LOST = 0.10
"""Share of the seconds, at least, that a load which starves, waits or communicates loses."""

CPU: Pair = (State.STARVED, Cause.CPU)
UNKNOWN: Pair = (State.STARVED, Cause.UNKNOWN)
WITHOUT_THREADS: dict[str, frozenset[Pair]] = {
    "littlecnn-16": frozenset({CPU}),
    "littlecnn-64": frozenset({CPU}),
    "littlecnn-256": frozenset({CPU}),
    "littlecnn-1024": frozenset({CPU}),
    "disk": frozenset({(State.STARVED, Cause.DISK), CPU}),
    "sleeps": frozenset({UNKNOWN, CPU}),
    "rank0-sleeps": frozenset({UNKNOWN, CPU}),
    "network": frozenset({UNKNOWN, CPU}),  # nor what the job's network namespace received
}
"""What is found on tapes that were recorded before threads were read: they hold the CPU time of
whole processes, so that what the launching thread runs is that of an unknown thread beside it. They
still prove how much is lost, and that it is no other cause. New tapes hold the threads."""

Seconds = Mapping[Pair, float]


def labels(directory: Path) -> dict[str, Any]:
    path = directory / LABELS
    return dict(json.loads(path.read_text())) if path.exists() else {}


ENTRIES = labels(LABELLED)


def booked(tape: Path, span: Span, *, gpm: bool) -> dict[str, Seconds]:
    """Seconds by state and cause that an agent books on each GPU of a tape within the span."""
    clock = FrozenClock()
    hardware = taped_hardware(tape, clock)
    agent = build_agent(config(), hardware if gpm else without_gpm(hardware), clock, inline=True)
    accounts = agent.diagnosis.accounts
    before: dict[str, Seconds] | None = None
    clock_step = 1.0 + LATE
    while clock.monotonic() <= span.until:
        asyncio.run(agent.poller.tick())
        if before is None and clock.monotonic() >= span.since:
            before = {uuid: dict(account.booked.seconds) for uuid, account in accounts.items()}
        clock.advance(clock_step)
        clock_step = 1.0
    assert before is not None
    index = {gpu.uuid: str(gpu.index) for gpu in agent.gpus.inventory.gpus}
    return {
        index[uuid]: {p: s - before[uuid][p] for p, s in account.booked.seconds.items()}
        for uuid, account in accounts.items()
    }


def wrong_with(
    found: Seconds,
    right: frozenset[Pair],
    *,
    gpm: bool,
    inactive: float = 0.0,
    least: float = RIGHT,
) -> str:
    """What is wrong with a GPU's seconds; empty where nothing is. A healthy load is `inactive` for
    this share by its own clock; `least` is the part of what is lost that has its true cause."""
    whole = sum(found.values())
    if whole < LEAST_SECONDS:
        return f"{whole:.0f} s say nothing"
    shares = {p: s / whole for p, s in found.items() if s}
    lost = {
        p: share
        for p, share in shares.items()
        if p != BUSY and (p in right or p != BY_NVLINK or share > EXPOSED_AT_MOST)
    }
    told = ", ".join(f"{'/'.join(p)} {share:.3f}" for p, share in shares.items())
    if right == {BUSY}:
        return told if sum(lost.values()) > LOST_AT_MOST[gpm] + inactive else ""
    if sum(lost.values()) < LEAST_LOST:
        return told
    named = sum(share for p, share in lost.items() if p in right)
    return told if named < least * sum(lost.values()) else ""


@cache
def seconds_of(directory: Path, name: str, *, gpm: bool) -> dict[str, Seconds]:
    """Seconds of each GPU of a tape while its label holds."""
    entry = labels(directory)[name]
    span = Span(*(entry[field] for field in Span._fields))
    return booked(directory / f"{name}.tape", span, gpm=gpm)


def wrong(
    directory: Path, name: str, *, gpm: bool = True, inactive: float = 0.0, right: float = RIGHT
) -> dict[str, str]:
    """What is wrong on each GPU of a tape."""
    entry, seconds = labels(directory)[name], seconds_of(directory, name, gpm=gpm)
    found = {
        gpu: wrong_with(
            seconds[gpu],
            frozenset(map(pair, label["pairs"])),
            gpm=gpm,
            inactive=inactive,
            least=right,
        )
        for gpu, label in entry["gpus"].items()
    }
    return {gpu: told for gpu, told in found.items() if told}


def test_every_tape_is_labelled_and_every_label_has_its_tape() -> None:
    assert sorted(ENTRIES) == sorted(path.stem for path in LABELLED.glob("*.tape"))
    assert len(ENTRIES) >= LEAST_TAPES


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in WITHOUT_THREADS])
@pytest.mark.parametrize("gpm", [True, False], ids=["gpm", "without-gpm"])
def test_what_was_recorded_is_judged_right(name: str, gpm: bool) -> None:
    assert wrong(LABELLED, name, gpm=gpm) == {}


@pytest.mark.parametrize("name", WITHOUT_THREADS)
@pytest.mark.parametrize("gpm", [True, False], ids=["gpm", "without-gpm"])
def test_what_was_recorded_without_threads_is_lost_to_nothing_else(name: str, gpm: bool) -> None:
    off, seconds = wrong(LABELLED, name, gpm=gpm), seconds_of(LABELLED, name, gpm=gpm)
    assert off, "right again: it is no exception any more"
    assert {wrong_with(seconds[gpu], WITHOUT_THREADS[name], gpm=gpm) for gpu in off} == {""}


SIMULATED_LOST = 0.03
"""Share of a simulated training, by its own clock, for which its GPU is inactive."""

SIMULATED_DISK = 0.80
"""Part of what a simulated load loses to the disk: its loaders decode what they read, and its main
thread launches."""

SHORT = ("disk", "rank0-double")
SIMULATED = (*SHORT, "copies", "vgg16")


@pytest.fixture(scope="module")
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tapes of a simulated machine that plays scenarios in place of the loads."""
    directory = tmp_path_factory.mktemp("tapes")
    names = SIMULATED if request.config.getoption("--nightly") else SHORT
    for trial in chosen((*ALONE, *TOGETHER), names):
        play(replace(trial, seconds=20.0), SimulatedLoads("dgx-h100"), tapes=directory)
    return directory


@pytest.mark.parametrize("name", shortly(SIMULATED, SHORT))
@pytest.mark.parametrize("gpm", [True, False], ids=["gpm", "without-gpm"])
def test_a_tape_of_a_simulated_machine_is_judged_right(
    simulated: Path, name: str, gpm: bool
) -> None:
    assert len(labels(simulated)[name]["gpus"]) == (8 if name == "rank0-double" else 1)
    found = wrong(simulated, name, gpm=gpm, inactive=SIMULATED_LOST, right=SIMULATED_DISK)
    assert found == {}


@pytest.mark.parametrize(("name", "label"), [("disk", "starved/cpu"), ("disk", "busy")])
def test_a_wrong_label_is_found_out(simulated: Path, tmp_path: Path, name: str, label: str) -> None:
    entry = labels(simulated)[name]
    entry["gpus"]["0"]["pairs"] = [label]
    (tmp_path / LABELS).write_text(json.dumps({name: entry}))
    (tmp_path / f"{name}.tape").write_bytes((simulated / f"{name}.tape").read_bytes())
    assert list(wrong(tmp_path, name)) == ["0"]


def test_a_starving_load_that_is_called_busy_is_found_out() -> None:
    right = frozenset({pair("starved/disk")})
    assert wrong_with({BUSY: 20.0}, right, gpm=True)
    assert wrong_with({BUSY: 1.0, pair("starved/disk"): 2.0}, right, gpm=True), "too short"
