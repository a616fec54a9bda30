"""Many clients at once against a real agent: everyone is answered, and the ticks go on.

How fast is printed, and asserted nowhere: other programs share this machine. `python -m
tests.benchmarks.load` is the long form.
"""

import pytest

from tests.benchmarks import load
from tests.stack.running import eventually

CLIENTS = 64


def test_everyone_is_answered_and_the_ticks_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with load.agent("dgx-h100:training") as (port, tick_times):
        before = len(tick_times.at)
        found = load.measure(port, tick_times, CLIENTS, seconds=3.0)
        assert len(found.scrapes) >= CLIENTS
        assert len(found.scrapes) % CLIENTS == 0, "each round was answered to the last client"
        eventually(lambda: len(tick_times.at) >= before + 3, 60, "ticks under load")
    with capsys.disabled():
        print(f"\nload, {CLIENTS} clients, 3 s: {found}")
