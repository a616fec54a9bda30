"""Bytes of an open page; `python -m tests.benchmarks.tick` measures its CPU time."""

import pytest

from exporters.live.feed import Client, Feed
from tests.support.statuses import shown

TICK = {"k40": 25_000, "dgx-1-v100": 60_000, "dgx-h100": 75_000, "sixteen": 100_000}
"""Bytes that a tick may take at most; a machine in trouble says more than one that is busy."""

HISTORY_OF_A_SECOND = 8_000
"""Of sixteen GPUs, each of which starves for several causes at once."""


@pytest.mark.parametrize("name", TICK)
def test_a_tick_is_small(name: str) -> None:
    feed, client = Feed(shown(f"{name}:starved-disk").run(7).board), Client()
    feed.join(client)
    found = {event.split(b"\n", 1)[0]: len(event) for event in feed.news(client)}
    print(name, found)
    assert found[b"event: status"] <= TICK[name]
    assert found[b"event: history"] <= HISTORY_OF_A_SECOND
