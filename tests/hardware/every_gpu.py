"""`python -m tests.hardware.every_gpu [price] [links] [shares] [--out DIR] [...]`: on every GPU.

Asks all GPUs of this machine at once, two or more; each part takes at most nine minutes.
`price`: CPU and memory of the agent beside a bare loop of the same driver calls, nvitop-exporter,
`nvidia-smi dmon` and node_exporter, in turns; scrapes; what training loses. `links`: NVLink's bytes
against NCCL's. `shares`: labelled loads on all GPUs, what is reported of them against what is true.

A line a figure, with its goal; with --out also as JSON lines in DIR/PART.jsonl, and what the agents
of `links` and `shares` were reported as DIR/PART.tape. DGX_TRIALS_ON=SYSTEM tries `price` on a
simulated machine: what it costs there says nothing.
"""

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from agent.cli.assembly import real_hardware, recorded
from tests.hardware import saturation, traffic
from tests.hardware.bare_loop import library_here
from tests.hardware.bench import Figure, MachineClock, Watcher
from tests.hardware.labelled_loads.table import LOADS
from tests.hardware.price import Durations, Price, Window
from tests.hardware.share_comparison import STEP_WITHIN, WITHIN, Judged, summary
from tests.hardware.share_trials import Trials

PART_SECONDS = 520.0
SLOTS = (
    *("exposed-10-200ms", "exposed-25-20ms", "exposed-50-200ms", "exposed-75-2000ms"),
    *("overlapped", "all-to-all", "late-5-sleeping", "gpt+exposed-25-20ms", "pipeline"),
    *("gpt", "sharded", "hang-stopped"),
)
"""Loads of all GPUs; two jobs of half of them are joined by a plus."""

Line = Figure | Window | Judged | str


def gpu_count() -> int:
    """Return the number of GPUs that the driver has."""
    library = library_here()
    library.nvmlInit()
    try:
        return int(library.nvmlDeviceGetCount())
    finally:
        library.nvmlShutdown()


def playable(slots: Iterable[str], gpus: int) -> Iterator[str]:
    """Those for which there are GPUs enough: two for each job of several."""
    for slot in slots:
        names = slot.split("+")
        several = any(LOADS[name].gpus > 1 for name in names)
        if several and gpus // len(names) < 2:
            print(f"{slot} needs {2 * len(names)} GPUs: left out", flush=True)
        else:
            yield slot


def share_figures(shown: Judged) -> Iterator[Figure]:
    """Return the largest error of a share of one GPU, and its step."""
    name = f"{shown.span.load} gpu{shown.span.gpu} {shown.signals}"
    yield Figure(f"{name} share", shown.error, 0.0, WITHIN[shown.signals], "off at most")
    if shown.step_error is not None:
        yield Figure(f"{name} step", shown.step_error, -STEP_WITHIN, STEP_WITHIN, "off")


def record(part: str, line: Line) -> dict[str, object]:
    """A line as JSON has it: what is measured, its bounds, whether it holds."""
    if isinstance(line, Figure):
        bounds = {
            k: v if math.isfinite(v) else None for k, v in line._asdict().items() if k in BOUNDS
        }
        return {"part": part, **line._asdict(), **bounds, "holds": line.holds}
    if isinstance(line, Window):
        return {"part": part, **line._asdict()}
    if isinstance(line, Judged):
        return {"part": part, **asdict(line), "steps": len(line.steps)}
    return {"part": part, "note": line.strip()}


BOUNDS = ("value", "least", "most")


class Parts:
    """The parts of one call."""

    def __init__(self, given: argparse.Namespace, gpus: int) -> None:
        self._given = given
        self._gpus = gpus
        self._start = time.monotonic()
        self._out: Path | None = given.out

    def run(self, part: str) -> Iterator[Line]:
        """Its lines, as they are known."""
        return {"price": self._price, "links": self._links, "shares": self._shares}[part]()

    def _price(self) -> Iterator[Line]:
        names = Durations.__dataclass_fields__
        return Price(self._gpus, Durations(**{n: getattr(self._given, n) for n in names})).run()

    def _links(self) -> Iterator[Line]:
        hardware, recorder = recorded(real_hardware(), MachineClock())
        watcher = Watcher(hardware)
        watcher.ticks(2.5)
        try:
            yield from traffic.all_reduce(watcher)
            yield from saturation.nvlink(watcher)
        finally:
            if self._out:
                recorder.write(self._out / "links.tape")

    def _shares(self) -> Iterator[Line]:
        left = self._given.until - (time.monotonic() - self._start)
        trials, found = Trials(left, self._gpus), []
        try:
            for shown in trials.run(list(playable(self._given.slots, self._gpus))):
                found.append(shown)
                yield shown
                yield from share_figures(shown)
        finally:
            if self._out:
                trials.write(self._out / "shares")
        yield summary(found)


def written(path: Path | None, part: str, lines: Iterable[Line]) -> Iterator[Line]:
    """The lines, each added to a file when it is known."""
    for line in lines:
        if path is not None:
            with open(path / f"{part}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record(part, line)) + "\n")
        yield line


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="price, links, shares")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--until", type=float, default=PART_SECONDS, help="s of the whole call")
    parser.add_argument("--slots", type=lambda t: tuple(t.split(",")), default=SLOTS)
    for name, default in asdict(Durations()).items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(default), default=default, metavar="N")
    given = parser.parse_args(words)
    given.parts = given.parts or ["price", "links", "shares"]
    unknown = [n for slot in given.slots for n in slot.split("+") if n not in LOADS]
    unknown += [part for part in given.parts if part not in ("price", "links", "shares")]
    if unknown:
        parser.error(f"no such part or load: {', '.join(unknown)}")
    return given


def main(words: Sequence[str]) -> int:
    """Print the parts; 1 if a figure is out of its bounds or a part could not be run."""
    given = arguments(words)
    gpus = gpu_count()
    if gpus < 2:
        print(f"this machine has {gpus} GPU: two are needed")
        return 1
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    print(f"{gpus} GPUs, {os.cpu_count()} cores", flush=True)
    wrong, parts = 0, Parts(given, gpus)
    for part in given.parts:
        print(f"== {part}", flush=True)
        start = time.monotonic()
        try:
            for line in written(given.out, part, parts.run(part)):
                print(line, flush=True)
                wrong += isinstance(line, Figure) and not line.holds
        except Exception:
            traceback.print_exc()
            wrong += 1
        print(f"== {part} took {time.monotonic() - start:.0f} s", flush=True)
    print(f"{wrong} figures out of their bounds")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
