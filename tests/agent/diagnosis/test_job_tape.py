"""A job of two real H100, recorded while it became 5 % slower and then hung.

The load's own clock says when.
"""

import asyncio
from pathlib import Path

import pytest

from agent.cli.assembly import taped_hardware
from agent.config.settings import Settings
from agent.jobs.job import CulpritState
from tests.hardware.bench import Watcher
from tests.support.frozen_clock import FrozenClock

TAPE = Path(__file__).parents[2] / "tapes" / "jobs" / "two-h100.tape"
SLOWER, HUNG, END = 112.1, 183.6, 205  # s of the tape


def test_when_a_real_job_became_slower_and_when_it_hung() -> None:
    clock = FrozenClock()
    watcher = Watcher(taped_hardware(TAPE, clock), Settings(), clock)
    clock.advance(0.25)
    slower: list[tuple[float, float, float]] = []  # at, since, by
    hung: list[tuple[float, float]] = []  # at, since
    named: set[object] = set()
    while clock.monotonic() < END:
        asyncio.run(watcher.tick())
        now, wall = clock.monotonic(), clock.time() - clock.monotonic()
        running = watcher.agent.jobs.current.running
        for job in (job for job in running if len(job.receipt.gpus) == 2):
            if job.slower:
                slower.append((now, job.slower.since - wall, job.slower.ratio))
            if job.hang:
                hung.append((now, job.hang.since - wall))
                named |= {
                    (one.gpu.index if one.gpu else None, one.state) for one in job.hang.culprits
                }
        clock.advance(1.0)
    assert SLOWER < slower[0][0] < SLOWER + 15
    assert [since for _, since, _ in slower] == pytest.approx([SLOWER] * len(slower), abs=5)
    assert max(ratio for *_, ratio in slower) == pytest.approx(0.05, abs=0.01)
    assert HUNG < hung[0][0] < HUNG + 16
    assert named == {(1, CulpritState.STOPPED)}
    assert [since for _, since in hung] == pytest.approx([HUNG] * len(hung), abs=5)
