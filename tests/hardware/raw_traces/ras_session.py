"""One job asked about its ranks from before its start until after its end."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.hardware.raw_traces import ras
from tests.hardware.raw_traces.running import PlayedLoad

JOB = "resting"
SECONDS = 28.0  # of the job's steady phase, the first six of which it rests
BLOCK = 2.0
ASK_EVERY = 0.25  # s, in every other block: twenty times as often as an agent asks

Talk = dict[str, Any]


def session(job: PlayedLoad, second: PlayedLoad) -> list[Talk]:
    """The transcripts, each with its `case`; the last one holds the job's own lines.

    Both jobs are JOB, standing by, for SECONDS.
    """
    talks: list[Talk] = []
    try:
        job.go()
        talks += _labelled("start", _until(lambda: bool(job.truths()), 0.2))
        talks += _labelled("idle", ras.ask_everything(tuple(ras.ALL)))
        talks += _labelled("idle, beside a silent connection", _beside_silence())
        second.go()
        second.await_steady(30)
        asked = ("text", "verbose", "json", "repeated", "repeated")
        talks += _labelled("second job on the host", ras.ask_everything(asked))
        pids = [truth.pid for truth in second.truths().values()]
        talks.append({"case": "second job", "pids": pids, "at": time.monotonic()})
        second.stop()
        talks += _labelled("after the second job's end", ras.ask_everything(("text", "json")))
        talks += _labelled("running", ras.ask_everything())
        talks += _paired(lambda: job.process.poll() is None, job)
        talks += _labelled("end", _until(lambda: job.process.poll() is not None, 0.05))
        talks += _labelled("after the end", ras.ask_everything(("text",)))
        talks.append({"case": "the job's own lines", "lines": job.lines()})
    finally:
        second.stop()
        job.stop()
    return talks


def _labelled(case: str, talks: Iterator[Talk] | list[Talk]) -> list[Talk]:
    return [{"case": case, **talk} for talk in talks]


def _until(over: Callable[[], bool], every: float, timeout: float = 30.0) -> Iterator[Talk]:
    """Ask again and again; of what is refused only the first and the last of a row is kept."""
    end = time.monotonic() + timeout
    refused: Talk | None = None
    while time.monotonic() < end and not over():
        talk = ras.ask(ras.TEXT)
        if talk["talk"][-1][0] == "error":
            if refused is None:
                yield talk
            refused = talk
        else:
            if refused is not None:
                yield refused
                refused = None
            yield talk
        time.sleep(every)
    if refused is not None:
        yield refused


def _beside_silence() -> list[Talk]:
    with contextlib.suppress(OSError), socket.create_connection(ras.ADDRESS, 2.0):
        return [{"question": "json", **ras.ask(ras.JSON)}]
    return []


def _paired(running: Callable[[], bool], job: PlayedLoad) -> Iterator[Talk]:
    """Blocks with questions and blocks without, in turns, until the job is about to end."""
    truth = next(iter(job.truths().values()))
    last = truth.steady + SECONDS - BLOCK - 0.5
    asking = False
    while running() and time.monotonic() < last:
        start, took = time.monotonic(), []
        while time.monotonic() - start < BLOCK:
            if asking:
                took.append(ras.ask(ras.JSON)["seconds"])
            time.sleep(ASK_EVERY)
        block = {"since": start, "until": time.monotonic(), "asking": asking, "took": took}
        yield {"case": "paired", **block}
        asking = not asking


class Questions(threading.Thread):
    """Questions at given seconds of a load's steady phase."""

    def __init__(self, steady: float, times: tuple[tuple[float, tuple[str, ...]], ...]) -> None:
        super().__init__(daemon=True)
        self._steady, self._times = steady, times
        self.talks: list[Talk] = []

    def run(self) -> None:
        """Ask."""
        for offset, names in self._times:
            time.sleep(max(0.0, self._steady + offset - time.monotonic()))
            self.talks += _labelled(f"steady + {offset:g} s", ras.ask_everything(names))
