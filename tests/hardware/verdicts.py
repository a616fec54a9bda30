"""What the agent says of loads whose verdict is known: a confusion matrix, and tapes of each."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agent.cli.assembly import Hardware, recorded
from tests.hardware.bench import Figure, Watcher
from tests.hardware.judging import Expected, Matrix, Score, Span, Tick, score, ticks
from tests.hardware.load_runners import LoadRunner, RunningLoad, runner
from tests.hardware.trials import ALONE, SETTLED, TOGETHER, Trial, config
from tests.hardware.verdict_figures import verdict_figures
from tests.hardware.without_gpm import without_gpm

TIMEOUT = 60.0
"""Seconds that a load may take to its steady phase."""

BUDGET = 540.0
"""Seconds for all trials of a part: machines are lent for ten minutes at a time."""

OVERHEAD = 12.0
"""Seconds that a trial may take besides those of its steady phase."""

STATE_GOAL, CAUSE_GOAL = 0.95, 0.90
LARGEST_TAPE = 150.0  # kB
LABELS = "labels.json"


@dataclass(slots=True, eq=False)
class Recording:
    """A trial that was played: two agents that watched it, one of them without GPM."""

    trial: Trial
    with_gpm: Watcher
    no_gpm: Watcher
    span: Span
    images: float | None = None
    started_after: float = 0.0  # s from the load's start to its steady phase
    tape: Path | None = None

    @property
    def roles(self) -> dict[str, Expected]:
        """What is expected of each judged GPU, by index."""
        gpus = sorted(str(i.index) for i in self.with_gpm.agent.gpus.inventory.gpus)
        if self.trial.others is None:
            return {"0": self.trial.first}
        return {g: self.trial.first if g == "0" else self.trial.others for g in gpus}

    def told(self, gpu: str, *, gpm: bool = True) -> list[Tick]:
        """The verdicts on one GPU."""
        return ticks((self.with_gpm if gpm else self.no_gpm).snapshots, gpu)


async def _tick_together(watchers: Sequence[Watcher], more: Callable[[], bool]) -> None:
    clock = watchers[0].clock
    due = clock.monotonic()
    while more():
        for watcher in watchers:
            await watcher.tick()
        due += 1.0
        await clock.sleep(max(0.0, due - clock.monotonic()))


def play(
    trial: Trial,
    on: LoadRunner,
    then: Callable[[], None] = lambda: None,
    tapes: Path | None = None,
) -> Recording:
    """Play one load and watch it; `then` is called when it is steady. Raises RuntimeError."""
    source = on.hardware()
    taped, recorder = recorded(source, on.clock) if tapes else (source, None)
    # The second agent looks at the host past the recorder: its questions would be taped twice.
    no_gpm = Hardware(taped.library, source.host, source.simulated)
    signals = Watcher(taped, config(), on.frozen)
    pair = (signals, Watcher(without_gpm(no_gpm), config(), on.frozen))
    began = on.clock.monotonic()
    running_load = on.begin(trial)
    try:
        asyncio.run(_tick_together(pair, _until_over(trial, running_load, on, then)))
        if running_load.steady is None or running_load.ended:
            raise RuntimeError(f"the load {trial.name} did not start, or ended too early")
        onset = running_load.steady + trial.onset
        span = Span(onset, onset + SETTLED, signals.snapshots[-1].at)
        images = running_load.images(running_load.steady + SETTLED, span.until)
        found = Recording(trial, *pair, span, images, running_load.steady - began)
        if recorder is not None and tapes:
            tapes.mkdir(parents=True, exist_ok=True)
            found.tape = tapes / f"{trial.name}.tape"
            recorder.write(found.tape)
            _label(found, recorder._writer._start or 0.0)
    finally:
        running_load.stop()
    return found


def _until_over(
    trial: Trial, running_load: RunningLoad, on: LoadRunner, then: Callable[[], None]
) -> Callable[[], bool]:
    timeout = on.clock.monotonic() + TIMEOUT
    told = False

    def more() -> bool:
        nonlocal told
        now, steady = on.clock.monotonic(), running_load.steady
        if running_load.ended or steady is None:
            return not running_load.ended and now < timeout
        if not told:
            told = True
            then()
        return now < steady + trial.seconds

    return more


def _label(found: Recording, origin: float) -> None:
    """Note beside the tapes what is right on this one, and when, in seconds of the tape."""
    assert found.tape is not None
    path = found.tape.with_name(LABELS)
    labels: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    span = [round(moment - origin, 3) for moment in found.span]
    gpus = {gpu: expected.to_json() for gpu, expected in found.roles.items()}
    labels[found.trial.name] = {**dict(zip(Span._fields, span, strict=True)), "gpus": gpus}
    path.write_text(json.dumps(labels, indent=1, sort_keys=True) + "\n")


def chosen(trials: Iterable[Trial], names: Sequence[str]) -> list[Trial]:
    """Those of these names, or all; KeyError where there is no such trial."""
    by_name = {trial.name: trial for trial in trials}
    return [by_name[name] for name in names] if names else list(by_name.values())


def verdicts(names: Sequence[str] = ()) -> Iterator[Figure]:
    """Loads of one GPU."""
    return judged(chosen(ALONE, names), runner(), _tapes())


def peers(names: Sequence[str] = ()) -> Iterator[Figure]:
    """Loads of all GPUs together."""
    return judged(chosen(TOGETHER, names), runner(), _tapes())


def _tapes() -> Path | None:
    directory = os.environ.get("DGX_TAPES")
    return Path(directory) if directory else None


def judged(trials: Sequence[Trial], on: LoadRunner, tapes: Path | None) -> Iterator[Figure]:
    """Play each load; what was said of it, and the goals."""
    matrices = Matrix(), Matrix()
    total = Score()
    end = time.monotonic() + BUDGET
    try:
        for place, trial in enumerate(trials):
            if lacks := on.lacks(trial):
                print(f"-- {trial.name} is not played: {lacks}", flush=True)
                continue
            if time.monotonic() + trial.seconds + OVERHEAD > end and not on.frozen:
                yield Figure(f"{trial.name} played", 0, 1, 1, "", "no time was left")
                continue
            try:
                found = play(trial, on, partial(prepare_next, on, trials[place + 1 :]), tapes)
            except RuntimeError as error:
                yield Figure(f"{trial.name} played", 0, 1, 1, "", str(error))
                continue
            yield from _figures(found, matrices, total)
    finally:
        on.clear()
        for title, matrix in zip(("with GPM", "without GPM"), matrices, strict=True):
            print(f"ticks by load and verdict, {title}:", *matrix.lines(), sep="\n  ", flush=True)
    yield Figure("state right, all loads", total.state, STATE_GOAL, 1, "", f"{total.ticks} ticks")
    if total.cause is not None:
        yield Figure("cause right, all loads", total.cause, CAUSE_GOAL, 1, "of those with one")


def prepare_next(on: LoadRunner, coming: Sequence[Trial]) -> None:
    """The next load imports its libraries while this one is watched."""
    for trial in coming[:1]:
        on.prepare(trial)


def _figures(found: Recording, matrices: tuple[Matrix, Matrix], total: Score) -> Iterator[Figure]:
    name, images = found.trial.name, found.images
    rate = "" if images is None else f", {images:.0f} images/s"
    print(f"-- {name}: steady after {found.started_after:.1f} s{rate}", flush=True)
    if found.tape is not None:
        size = found.tape.stat().st_size / 1e3
        yield Figure(f"{name} tape", size, 0, LARGEST_TAPE, "kB")
    for gpu, expected in found.roles.items():
        told, unseeing = found.told(gpu), found.told(gpu, gpm=False)
        row = f"{name} gpu{gpu}"
        matrices[0].add(row, told, found.span)
        matrices[1].add(row, unseeing, found.span)
        mine = score(told, expected, found.span)
        poorer = score(unseeing, expected, found.span, truth=told)
        for line in verdict_figures(found.with_gpm, gpu, found.span, expected):
            print(f"   gpu{gpu} {line}")
        print(f"   gpu{gpu} without GPM: {_words(poorer)}", flush=True)
        yield from _goals(row, mine, expected)
        for part in ("ticks", "right_state", "caused", "right_cause"):
            setattr(total, part, getattr(total, part) + getattr(mine, part))


def _goals(row: str, found: Score, expected: Expected) -> Iterator[Figure]:
    yield Figure(f"{row} state right", found.state, STATE_GOAL, 1, "", f"{found.ticks} ticks")
    if found.cause is not None:
        yield Figure(f"{row} cause right", found.cause, CAUSE_GOAL, 1, "", f"{found.caused} ticks")
    if expected.healthy:
        yield Figure(f"{row} called starved", found.starved, 0, 0, "ticks")
    first = float("inf") if found.first is None else found.first
    yield Figure(f"{row} first right verdict after", first, 0, SETTLED, "s")


def _words(found: Score) -> str:
    cause = "none to name" if found.cause is None else f"{100 * found.cause:.0f} %"
    first = "never" if found.first is None else f"after {found.first:.1f} s"
    return f"state right {100 * found.state:.0f} %, cause right {cause}, first right {first}"
