"""An agent that lives through trouble for hours does not grow, and shows nothing of what is gone.

The short form lives through two rounds of trouble after four in which it warms up, on GPUs with the
most to read; nightly ones take V100s too, and go on for seventy. The long form is run by hand:
`python -m tests.benchmarks.soak --ticks 100000`.
"""

import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.benchmarks.soak import MOST_BLOCKS, MOST_GROWTH, Measure, grown
from tests.stack.running import run_to_end
from tests.support.nightly import NIGHTLY
from tests.support.random_faults import STRIKES

WARM = Measure(
    ticks=1120,
    seconds=3.0,
    rss=40_000_000,
    traced=0,
    blocks=170_000,
    files=6,
    threads=1,
    new=frozenset(),
    missing=frozenset(),
)


@pytest.mark.parametrize(
    "machine",
    [
        ["--system", "dgx-h100", "--gpus", "1", "--ticks", "560", "--config", "processes"],
        pytest.param(["--system", "dgx-station-v100", "--ticks", "560"], marks=NIGHTLY),
        pytest.param(["--system", "dgx-station-v100", "--ticks", "20000"], marks=NIGHTLY),
        pytest.param(["--system", "k40", "--ticks", "20000"], marks=NIGHTLY),
    ],
    ids=["an H100 with processes", "V100s", "long", "an old GPU, long"],
)
def test_nothing_grows(machine: list[str]) -> None:
    """In a process of its own: what other tests left behind must not count."""
    command = [sys.executable, "-m", "tests.benchmarks.soak", *machine, "--lines", "4"]
    done = run_to_end(command)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in STRIKES if f"'{name}': " not in done.stdout] == []


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"rss": WARM.rss + MOST_GROWTH}, "2000000 bytes more"),
        ({"traced": MOST_GROWTH}, "2000000 bytes traced"),
        ({"blocks": WARM.blocks + MOST_BLOCKS}, "4000 objects more"),
        ({"files": 7}, "7 files open, 6 before"),
        ({"threads": 2}, "2 threads, 1 before"),
    ],
)
def test_growth_is_reported(change: dict[str, Any], shown: str) -> None:
    assert grown(WARM, replace(WARM, **change), frozenset()) == [shown]
    assert grown(WARM, WARM, frozenset()) == []


def test_what_is_shown_of_a_machine_in_calm_is_always_the_same() -> None:
    shown = "series were new or missing: ['dgx_x']"
    assert grown(WARM, WARM, frozenset({("dgx_x", "eth7")})) == [shown]
